"""Schemathesis: requests made up from the OpenAPI document, good and bad."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

schemathesis = pytest.importorskip("schemathesis")


@pytest.fixture(scope="session")
def api_schema(server):
    return schemathesis.openapi.from_url(f"{server}/openapi.json")


schema = schemathesis.pytest.from_fixture("api_schema")


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_made_up_requests(case):
    case.call_and_validate(
        checks=[
            schemathesis.checks.not_a_server_error,
            schemathesis.specs.openapi.checks.response_schema_conformance,
            schemathesis.specs.openapi.checks.status_code_conformance,
            schemathesis.specs.openapi.checks.content_type_conformance,
        ]
    )
