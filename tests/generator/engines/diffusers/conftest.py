"""One engine over the tiny checkpoint for all tests here."""

import pytest
from support import media
from support.engine import make_engine
from support.vae import remembering

from cosmos3_serve.contract.media import SIZES


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("outputs").resolve()


@pytest.fixture(scope="session")
def engine(root):
    """Encodes and decodes the same content once; what is about that makes an engine of its own."""
    with pytest.MonkeyPatch.context() as patch:
        yield remembering(make_engine(root, patch))


@pytest.fixture
def small_canvas(monkeypatch):
    """A quarter of the contract's smallest picture: nine tenths of the CPU is the VAE's, and that goes by the pixel."""
    monkeypatch.setitem(SIZES["256"], "16,9", (160, 96))


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Conditioning media, made once: image, clip, control clips, actions."""
    return media.write_all(tmp_path_factory.mktemp("media"))
