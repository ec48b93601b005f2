# Two stacks: `current` lives in .venv, `addons` (TensorFlow 2.15, tensorflow-addons) in .venv-addons.
PYTHON ?= python3
# What TensorFlow to install: tensorflow-cpu, tensorflow or gpu (NCCL needs HOROVOD_GPU_OPERATIONS=NCCL as well).
TENSORFLOW ?= tensorflow-cpu

.DEFAULT_GOAL := help
.PHONY: help train test test-addons lint docs bench soak image-test gpu-image-test newcomer-test clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

train: .venv/ready ## Train examples/mnist.py on 2 processes with 2 devices each
	.venv/bin/tfdist run -np 2 examples/mnist.py --devices 2

test: .venv/ready ## Run all tests on the current stack
	.venv/bin/python -m pytest

test-addons: .venv-addons/ready ## Run all tests on the addons stack
	.venv-addons/bin/python -m pytest

lint: .venv/ready ## Check style, types and the direction of imports
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

docs: .venv/ready ## Build the documentation; warnings fail
	.venv/bin/python -m pip install --quiet -e '.[docs]'
	.venv/bin/python -m sphinx -W --keep-going -b html docs docs/_build/html

bench: .venv/ready ## Run all benchmarks, about 55 minutes; those between test hosts need root
	.venv/bin/python benchmarks/overhead.py
	.venv/bin/python benchmarks/one_host.py
	.venv/bin/python benchmarks/published_scaling.py
	.venv/bin/python benchmarks/allreduce.py
	.venv/bin/python benchmarks/cost_model.py
	.venv/bin/python benchmarks/overlap.py
	.venv/bin/python benchmarks/optimizer_steps.py
	.venv/bin/python benchmarks/dgc.py
	.venv/bin/python benchmarks/callbacks_cost.py
	.venv/bin/python benchmarks/pipeline.py

.venv/ready: setup.cfg docker/horovod_wheel.sh tools/environment.sh
	./tools/environment.sh $(PYTHON) .venv $(TENSORFLOW),dev

.venv-addons/ready: setup.cfg docker/horovod_wheel.sh tools/environment.sh
	./tools/environment.sh $(PYTHON) .venv-addons addons,test

image-test: .venv/ready ## Build the image and train in it, about 8 minutes; needs root and Debian's packages, skips elsewhere
	./tools/image_test.sh

gpu-image-test: ## Build the GPU image without a GPU, about 10 minutes; needs the same
	./tools/gpu_image_test.sh

newcomer-test: ## Go from clone to a trained model on a bare Debian, about 5 minutes; needs the same
	./tools/newcomer_test.sh

soak: .venv/ready ## Kill training at 24 moments, on three layouts; about 9 minutes
	.venv/bin/python tests/killing.py

clean: ## Remove both environments and all results
	rm -rf .venv .venv-addons results docs/_build
