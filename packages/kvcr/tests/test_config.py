# SPDX-License-Identifier: Apache-2.0
import pickle

import pytest

from kvstrata.kvcr import ConfigError, KvcrConfig


def test_every_setting_has_a_default_and_a_description() -> None:
    config = KvcrConfig.parse({})
    assert config == KvcrConfig()
    for name, kind in KvcrConfig.__annotations__.items():
        assert kind.__metadata__[-1].description, name


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [(4096, 4096), ("4096", 4096), ("512B", 512), ("8GiB", 8 << 30), ("1.5 MiB", 3 << 19)],
)
def test_sizes_are_bytes_or_text_with_a_binary_unit(written: object, size_bytes: int) -> None:
    assert KvcrConfig.parse({"dram_bytes": written}).dram_bytes == size_bytes


@pytest.mark.parametrize("written", ["8GB", "eight", "", "-1GiB", "1e9", "GiB", "\u0668GiB"])
def test_a_size_that_could_be_misread_is_refused(written: str) -> None:
    with pytest.raises(ConfigError, match=r"dram_bytes is .*GiB") as caught:
        KvcrConfig.parse({"dram_bytes": written})
    assert (caught.value.setting, caught.value.value) == ("dram_bytes", written)


def test_an_unknown_key_is_an_error_that_suggests_the_near_one() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'control_port'") as caught:
        KvcrConfig.parse({"contrl_port": 1})
    assert caught.value.value == "contrl_port"
    assert "trust_request_hints" in caught.value.allowed


def test_an_unknown_key_that_is_like_no_other_is_to_be_removed() -> None:
    with pytest.raises(ConfigError, match="Remove it"):
        KvcrConfig.parse({"zzz": 1})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("control_port", 0),
        ("control_port", 65536),
        ("control_port", "28500"),
        ("nixl_port", 1.5),
        ("bind_host", ""),
        ("trust_request_hints", "yes"),
        ("trust_request_hints", 1),
        ("allowed_peers", "10.0.0.1"),
        ("dram_bytes", 0),
        ("operation_timeout_seconds", 0),
        ("operation_timeout_seconds", None),
        ("peer_probe_timeout_seconds", -1),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(setting: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        KvcrConfig.parse({setting: value})
    assert (caught.value.setting, caught.value.value) == (setting, value)
    assert caught.value.allowed
    assert setting in str(caught.value)


def test_the_abandon_timeout_is_at_least_twice_the_operation_timeout() -> None:
    with pytest.raises(ConfigError, match="Use 90 or more"):
        KvcrConfig.parse({"operation_timeout_seconds": 45})
    settings = {"operation_timeout_seconds": 45, "abandon_timeout_seconds": 90}
    assert KvcrConfig.parse(settings).abandon_timeout_seconds == 90


def test_a_server_on_every_interface_says_where_peers_reach_it() -> None:
    with pytest.raises(ConfigError, match="Set advertise_host"):
        KvcrConfig.parse({"bind_host": "0.0.0.0"})
    settings = {"bind_host": "0.0.0.0", "advertise_host": "10.0.0.1"}
    assert KvcrConfig.parse(settings).advertise_host == "10.0.0.1"


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        KvcrConfig().control_port = 1  # type: ignore[misc]


def test_a_config_error_survives_pickling() -> None:
    error = ConfigError("a", 1, "2", "Set a to 2.")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.setting, copy.value, copy.allowed, copy.fix) == ("a", 1, "2", "Set a to 2.")
    assert str(copy) == str(error)
