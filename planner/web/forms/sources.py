"""Define the forms of a new live source, one for each kind."""

from __future__ import annotations

from typing import Any

from django import forms

from planner.errors import IngestError
from planner.inputs.ingest.formats import OFFERED
from planner.inputs.ingest.options import column_mapping
from planner.models import Source
from planner.web.forms.widgets import dress

BINS = ((60, "1 min"), (300, "5 min"), (900, "15 min"), (3600, "1 h"))
ENGINES = (
    ("auto", "Whatever is there"),
    ("vllm", "vLLM"),
    ("sglang", "SGLang"),
    ("trtllm", "TensorRT-LLM"),
    ("tgi", "TGI"),
    ("dynamo", "Dynamo (frontend)"),
    ("llm-d", "llm-d (endpoint picker)"),
)


class SourceForm(forms.Form):
    """The fields of all kinds; ``settings`` holds the filled fields that a kind adds."""

    kind = ""
    first: tuple[str, ...] = ()  # order of the visible fields, and of the folded ones below
    more: tuple[str, ...] = ()
    name = forms.CharField(
        label="Name",
        max_length=80,
        help_text="How scenarios name it: small letters, digits and hyphens.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "autocapitalize": "none"}),
    )
    bin_s = forms.TypedChoiceField(
        label="Bins",
        choices=BINS,
        initial=300,
        coerce=int,
        help_text="The finest that plans can have; it cannot be changed later.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.order_fields([*self.first, *self.more])
        dress(self)

    def settings(self) -> dict[str, Any]:
        names = [name for name in self.fields if name not in SourceForm.base_fields]
        return {name: value for name in names if (value := self.cleaned_data[name]) not in ("", {})}

    def clean_match(self) -> dict[str, str]:
        return _pairs(self.cleaned_data["match"])

    def clean_mapping(self) -> dict[str, str]:
        return _pairs(self.cleaned_data["mapping"])


def _pairs(text: str) -> dict[str, str]:
    try:
        return column_mapping((line for line in text.splitlines() if line.strip()), "Line ")
    except IngestError as problem:
        raise forms.ValidationError(str(problem)) from None


def _text(label: str, help: str = "", **more: Any) -> forms.CharField:
    return forms.CharField(label=label, help_text=help, required=False, max_length=200, **more)


def _lines(label: str, help: str, placeholder: str) -> forms.CharField:
    area = forms.Textarea(attrs={"rows": 2, "spellcheck": "false", "placeholder": placeholder})
    return forms.CharField(label=label, help_text=help, required=False, widget=area)


class PrometheusForm(SourceForm):
    kind = Source.Kind.PROMETHEUS.value
    url = forms.CharField(
        label="Address",
        max_length=300,
        help_text="Of the server, without /api/v1; on the operator's list, HEADROOM_SOURCES.",
        widget=forms.TextInput(attrs={"placeholder": "https://prometheus.example:9090"}),
    )
    engine = forms.ChoiceField(label="Engine", choices=ENGINES, required=False)
    match = _lines("Only series with", "One label=value a line.", "namespace=prod")
    model = _text("Model of all", "Default: as the engine reports.")
    model_label = _text("Label of the model", "If it is not the engine's default.")
    region = _text("Region of all")
    region_label = _text("Label of the region", "Such as cluster.")
    tier = _text("Tier of all")
    tier_label = _text("Label of the tier")
    token_env = _text(
        "Variable of the bearer token", "Its name begins with HEADROOM_SOURCE_; never the token."
    )
    user_env = _text("Variable of the user name", "For basic authentication.")
    password_env = _text("Variable of the password")
    days = forms.FloatField(
        label="Days of history", initial=15, min_value=0.01, max_value=400, required=False
    )
    first = ("name", "url", "engine", "bin_s")
    more = (
        "match", "days", "model", "model_label", "region", "region_label", "tier", "tier_label",
        "token_env", "user_env", "password_env",
    )  # fmt: skip

    def settings(self) -> dict[str, Any]:
        return {name: value for name, value in super().settings().items() if value is not None}


class FilesForm(SourceForm):
    """How files are read, in any location."""

    format = forms.ChoiceField(
        label="Format", choices=list(OFFERED["format"].choices.items()), required=False
    )
    mapping = _lines("Columns", "One field=column a line.", "arrival=created:ms")
    model = _text("Model of every row")
    region = _text("Region of every row")
    tier = _text("Tier of every row")
    more: tuple[str, ...] = ("mapping", "model", "region", "tier")


class FolderForm(FilesForm):
    kind = Source.Kind.FOLDER.value
    path = forms.CharField(
        label="Folder",
        max_length=500,
        help_text="On the machine of the workers; in one of HEADROOM_SOURCE_FOLDERS.",
    )
    first = ("name", "path", "format", "bin_s")


class BucketForm(FilesForm):
    kind = Source.Kind.BUCKET.value
    url = forms.CharField(
        label="Address",
        max_length=300,
        help_text="Of the S3-compatible server, without the bucket; on the operator's list, "
        "HEADROOM_SOURCES.",
        widget=forms.TextInput(attrs={"placeholder": "https://s3.eu-central-1.amazonaws.com"}),
    )
    bucket = forms.CharField(label="Bucket", max_length=63)
    prefix = _text("Prefix", "The folder in it. Default: the whole bucket.")  # type: ignore[assignment]  # fields are no attributes: Form.prefix stays
    signing_region = _text("Region of the bucket", "As its server calls it; us-east-1.")
    access_key_env = _text(
        "Variable of the access key", "Its name begins with HEADROOM_SOURCE_; never the key."
    )
    secret_key_env = _text("Variable of the secret key")
    session_token_env = _text("Variable of the session token", "Of temporary credentials.")
    first = ("name", "url", "bucket", "prefix", "format", "bin_s")
    more = (
        "access_key_env", "secret_key_env", "session_token_env", "signing_region",
        *FilesForm.more,
    )  # fmt: skip


class SamplesForm(SourceForm):
    kind = Source.Kind.SAMPLES.value
    first = ("name", "bin_s")
    more = ()


FORMS: dict[str, type[PrometheusForm | FolderForm | BucketForm | SamplesForm]] = {
    form.kind: form for form in (PrometheusForm, FolderForm, BucketForm, SamplesForm)
}
