"""What upstreams hand over, put into the arguments of a member."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.flow.inputs import Passed
from flowfabric.worker.inputs import filled


def test_a_result_is_handed_over_as_it_was_written() -> None:
    given = [Passed("number", [b"12345678901234567890123"], is_list=False)]
    assert filled(b'{"number":null,"other":1}', given) == (
        b'{"number":12345678901234567890123,"other":1}'
    )


def test_results_go_to_places_inside_an_argument() -> None:
    given = [
        Passed("parts/0", [b'"a"'], is_list=False),
        Passed("parts/1/x~1y", [None], is_list=False),
        Passed("all", [b"1", b"2"], is_list=True),
    ]
    payload = b'{"parts":[null,{"x/y":0}],"all":null}'
    assert filled(payload, given) == b'{"parts":["a",{"x/y":null}],"all":[1,2]}'


@pytest.mark.parametrize("body", [b'1,"other":2', b"{", b"nothing", b"1 2"])
def test_what_is_no_json_is_refused_and_not_put_among_the_arguments(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        filled(b'{"number":null,"other":1}', [Passed("number", [body], is_list=False)])
