# The frameworks of docs/frameworks.md as PyPI has them, in one environment, and the tests that need them.

FRAMEWORKS := .venv-frameworks
FRAMEWORK_FLAGS ?=

.PHONY: test-frameworks
test-frameworks: fronts $(FRAMEWORKS)/.ready
	@$(FRAMEWORKS)/bin/python -m pytest -p no:cacheprovider tests/frameworks/installed tests/frameworks/jax tests/frameworks/tensorflow \
	  tests/frameworks/horovod/test_tensorflow.py tests/frameworks/horovod/test_keras.py tests/frameworks/torch/test_examples.py \
	  $(FRAMEWORK_FLAGS)

# Torch, pytest and this checkout come from .venv: packages of this environment come before those.
$(FRAMEWORKS)/.ready: tests/frameworks/installed/frameworks.mk tests/frameworks/installed/requirements.txt $(VENV)/.tools
	$(PYTHON) -m venv --without-pip $(@D)
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')')" \
	  > $$($(@D)/bin/python -c 'import site; print(site.getsitepackages()[0])')/venv.pth
	$(@D)/bin/python -m pip --disable-pip-version-check install -qq --no-build-isolation '$(TORCH)' \
	  -r tests/frameworks/installed/requirements.txt
	touch $@
