"""Define all settings; every choice of a deployment is an environment variable named here."""

import os
import resource
from importlib.resources import files
from pathlib import Path

from csp.constants import NONE, SELF, UNSAFE_HASHES
from django.core.exceptions import ImproperlyConfigured

from planner import setting_checks as checks
from planner.config import environment
from planner.errors import ScenarioError
from planner.installation import FILES, IN_CHECKOUT, ROOT, data_folder
from planner.policies.user_policy_settings import own_policies
from planner.services.identity_provider_settings import identity_provider
from planner.setting_checks import env_bool, env_choice, env_int, env_list, env_text
from planner.storage.bucket_settings import arrays_bucket
from planner.version import VERSION

environment.check_names()
environment.read_secret_files()
BASE_DIR = FILES

# Everything the product writes: database, queue, arrays, uploads, secrets, caches.
HEADROOM_DATA_DIR = environment.folder("HEADROOM_DATA_DIR", data_folder())
HEADROOM_ARRAYS = arrays_bucket()  # bucket for arrays and uploads; None: HEADROOM_DATA_DIR
# Limit of the local copies of the bucket's content; None: no limit.
HEADROOM_CACHE_BYTES = env_int("HEADROOM_CACHE_BYTES", 0) or None
HEADROOM_MAX_UPLOAD_BYTES = env_int("HEADROOM_MAX_UPLOAD_BYTES", 10 * 1000**3)
HEADROOM_MAX_WORKSPACE_BYTES = env_int("HEADROOM_MAX_WORKSPACE_BYTES", 100 * 1000**3)
HEADROOM_MAX_PERSON_BYTES = env_int("HEADROOM_MAX_PERSON_BYTES", HEADROOM_MAX_WORKSPACE_BYTES)
# Days after which unused runs and traces are removed; None: never.
HEADROOM_KEEP_RUNS_DAYS = env_int("HEADROOM_KEEP_RUNS_DAYS", 0, most=36_500) or None
HEADROOM_KEEP_TRACES_DAYS = env_int("HEADROOM_KEEP_TRACES_DAYS", 0, most=36_500) or None
HEADROOM_WORKSPACE = env_text(  # slug of the workspace of commands
    "HEADROOM_WORKSPACE", "main", check=checks.is_slug, give="the slug of a workspace, such as main"
)

# What live sources may read: addresses of servers (scheme, host, port and path), and folders.
HEADROOM_SOURCES = env_list(
    "HEADROOM_SOURCES",
    check=checks.is_url,
    give="addresses such as https://prometheus.example:9090",
)
# File of additional certificate authorities.
HEADROOM_SOURCES_CA = environment.certificates("HEADROOM_SOURCES_CA")
HEADROOM_SOURCE_FOLDERS = env_list(
    "HEADROOM_SOURCE_FOLDERS", check=os.path.isabs, give="folders that begin with /"
) or [str(HEADROOM_DATA_DIR / "inbox")]
try:
    own_policies()  # only a check; they are read again wherever policies are named
except ScenarioError as problem:
    raise ImproperlyConfigured(str(problem)) from None

# numba reads this at its first import, which is always after these settings.
os.environ.setdefault(
    "NUMBA_CACHE_DIR",
    str(
        environment.compiled_folder(ROOT, HEADROOM_DATA_DIR)
        if IN_CHECKOUT
        else HEADROOM_DATA_DIR / "numba"
    ),
)
environment.folder("NUMBA_CACHE_DIR", Path(os.environ["NUMBA_CACHE_DIR"]))

DEBUG = env_bool("HEADROOM_DEBUG")
HTTPS = env_bool("HEADROOM_HTTPS")  # True: behind a proxy that ends TLS and sets X-Forwarded-*
SECRET_KEY = environment.secret_key(HEADROOM_DATA_DIR)
HOSTS = env_list(
    "HEADROOM_ALLOWED_HOSTS", check=checks.is_host_name, give="host names such as headroom.example"
)
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", *HOSTS]
CSRF_TRUSTED_ORIGINS = env_list(
    "HEADROOM_CSRF_ORIGINS",
    check=checks.is_csrf_origin,
    give="origins with their scheme, such as https://headroom.example",
)
environment.check_production(debug=DEBUG, hosts=HOSTS, secret=SECRET_KEY)

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_htmx",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "planner",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    # Against BREACH: it pads compressed pages by a random length, and tokens in pages are masked.
    "django.middleware.gzip.GZipMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "planner.config.middleware.SessionsMiddleware",
    "planner.web.refused_requests.RefusalsMiddleware",
    "planner.config.middleware.BodyGateMiddleware",
    "planner.config.middleware.WorkspaceMiddleware",
    "planner.web.download_audit.DownloadAuditMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]
ROOT_URLCONF = "planner.config.urls"
WSGI_APPLICATION = "planner.config.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "builtins": ["planner.templatetags.tables"],
        },
    }
]

FORM_RENDERER = "planner.web.forms.widgets.FormRenderer"

# A core dump would write secrets to a disk.
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

# Database

DATABASES = {"default": environment.database(HEADROOM_DATA_DIR)}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"]["OPTIONS"] = {
        # Several processes write. WAL: readers do not block writers. IMMEDIATE: a writer locks at
        # the start and waits; one that upgrades a read lock fails at once.
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        "transaction_mode": "IMMEDIATE",
        "timeout": 30,  # s
    }
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = environment.redis_url()

# Shared by all web processes.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "headroom",
    }
    if REDIS_URL
    else {"BACKEND": "planner.config.cache.DiskCache", "LOCATION": HEADROOM_DATA_DIR / "cache"},
    # Of one process, so that another version of the program does not use old answers.
    "answers": {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        "LOCATION": "answers",
        "TIMEOUT": None,
        "OPTIONS": {"MAX_ENTRIES": 32},
    },
}

# People

AUTH_USER_MODEL = "planner.User"
LOGIN_URL = "web:login"
LOGIN_REDIRECT_URL = "web:home"
LOGOUT_REDIRECT_URL = "web:login"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}", "OPTIONS": options}
    for name, options in (
        ("UserAttributeSimilarityValidator", {}),
        ("MinimumLengthValidator", {"min_length": 12}),
        ("CommonPasswordValidator", {}),
        ("NumericPasswordValidator", {}),
    )
]
HEADROOM_OIDC = identity_provider(  # None without HEADROOM_OIDC_ISSUER
    hosts=env_list(
        "HEADROOM_OIDC_HOSTS",
        check=checks.is_host_origin_or_network,
        give="hosts, origins or networks, such as keys.example or 10.0.0.0/8",
    ),
    second_factor=env_bool("HEADROOM_OIDC_SECOND_FACTOR"),
)
HEADROOM_METRICS_OPEN = env_bool("HEADROOM_METRICS_OPEN")  # /metrics asks for no token
HEADROOM_REQUIRE_SECOND_FACTOR = env_bool("HEADROOM_REQUIRE_SECOND_FACTOR")  # of everybody
SESSION_ENGINE = "planner.services.sessions"
SESSION_COOKIE_NAME = "headroom_session"
SESSION_COOKIE_AGE = env_int("HEADROOM_SESSION_HOURS", 12, most=87_600) * 3600  # s
CSRF_COOKIE_NAME = "headroom_csrf"
CSRF_COOKIE_HTTPONLY = False  # htmx sends the token from the cookie or the page

# What browsers may do

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        # Plotly reads its styles from a file (_chart_scripts.html). The hash is of the empty
        # string: Plotly sets style="" to clear the fields of a legend.
        "style-src": [SELF, UNSAFE_HASHES, "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"],
        "img-src": [SELF, "data:", "blob:"],
        "object-src": [NONE],
        "frame-ancestors": [NONE],
        "form-action": [SELF],
        "base-uri": [SELF],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
if HTTPS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_SSL_REDIRECT = True
    # Monitors inside the network call these, without the proxy.
    SECURE_REDIRECT_EXEMPT = [r"^(health/|healthz|readyz|metrics)$"]
    SECURE_HSTS_SECONDS = 365 * 24 * 3600
    # W005, W021: this host must not require HTTPS of other hosts of the domain.
    SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
    SESSION_COOKIE_SECURE = True
    # "__Host-": no other host of the domain can set it
    SESSION_COOKIE_NAME = f"__Host-{SESSION_COOKIE_NAME}"
    CSRF_COOKIE_SECURE = True

# Notifications. Nothing is sent unless it is set, and webhooks go to these hosts only.

HEADROOM_URL = env_text(  # address of this site, for links in mails
    "HEADROOM_URL", check=checks.is_url, give="an address such as https://headroom.example"
).rstrip("/")
HEADROOM_WEBHOOKS = env_list(  # hosts, origins, and private networks that they are in
    "HEADROOM_WEBHOOKS",
    check=checks.is_host_origin_or_network,
    give="hosts, origins or networks, such as hooks.slack.com or 10.0.0.0/8",
)
HEADROOM_SMTP = os.environ.get("HEADROOM_SMTP", "")  # smtp+tls://USER:PASSWORD@HOST:587
HEADROOM_MAIL_DOMAINS = env_list(  # domains that mail may go to; empty: any
    "HEADROOM_MAIL_DOMAINS", check=checks.is_domain, give="domains such as example.com"
)
DEFAULT_FROM_EMAIL = env_text(
    "HEADROOM_MAIL_FROM",
    "headroom@localhost",
    check=checks.is_mail_address,
    give="a mail address such as headroom@example.com",
)
if HEADROOM_SMTP:
    globals().update(
        environment.smtp_server(HEADROOM_SMTP, site=HEADROOM_URL)
    )  # EMAIL_HOST and others

# Uploads are streamed to files, so that their size needs no memory

FILE_UPLOAD_HANDLERS = ["django.core.files.uploadhandler.TemporaryFileUploadHandler"]
FILE_UPLOAD_TEMP_DIR = environment.folder("HEADROOM_DATA_DIR", HEADROOM_DATA_DIR / "uploads")
FILE_UPLOAD_PERMISSIONS = 0o600
# bytes of the other fields of a form, such as a scenario's YAML
DATA_UPLOAD_MAX_MEMORY_SIZE = 5 * 1000**2

# Static files

STATIC_URL = "static/"
STATIC_ROOT = environment.folder(
    "HEADROOM_STATIC_DIR",
    Path(env_text("HEADROOM_STATIC_DIR") or HEADROOM_DATA_DIR / "static"),
    must_be_writable=False,  # read-only in the container image
)
STATICFILES_DIRS = [
    BASE_DIR / "static",
    # Swagger UI for the API's docs page, without the package's other viewer
    (
        "swagger-ui",
        str(files("drf_spectacular_sidecar") / "static/drf_spectacular_sidecar/swagger-ui-dist"),
    ),
]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG
        else "planner.config.static_files.StaticFiles"
    },
}
WHITENOISE_USE_FINDERS = DEBUG

# REST

HEADROOM_API_REQUESTS = env_int("HEADROOM_API_REQUESTS", 1200)  # per minute and person
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.SessionAuthentication",
        "planner.api.authentication.TokenAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_PAGINATION_CLASS": "rest_framework.pagination.PageNumberPagination",
    "PAGE_SIZE": 50,
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "planner.api.schema.ViewSchema",
    "EXCEPTION_HANDLER": "planner.api.errors.problem_handler",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Headroom",
    "DESCRIPTION": "Capacity planning for LLM serving fleets.",
    "VERSION": VERSION,
    "OAS_VERSION": "3.1.1",
    "DEFAULT_GENERATOR_CLASS": "planner.api.schema.Generator",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.IsAuthenticated"],
    "SERVE_AUTHENTICATION": [
        "planner.api.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "ENUM_NAME_OVERRIDES": {
        "RunKind": "planner.models.run.Run.Kind",
        "RunState": "planner.models.run.Run.State",
        "ProposalState": "planner.models.proposal.Proposal.State",
        "FiringState": "planner.models.schedule.Firing.State",
        "OutcomeState": "planner.models.schedule.Outcome.State",
        "ScheduleKind": "planner.models.schedule.Schedule.Kind",
        "ProposalEntryKind": "planner.models.proposal.ProposalEntry.Kind",
        "SourceKind": "planner.models.trace.Source.Kind",
        "SourceState": "planner.models.trace.Source.State",
        "TraceKind": "planner.models.trace.Trace.Kind",
        "TraceState": "planner.models.trace.Trace.State",
        "WorkKind": "planner.api.serializers.options.WORK",
        "FileFormat": "planner.api.serializers.options.FORMATS",
        "Solver": "planner.api.serializers.options.SOLVERS",
        "ForecastMethod": "planner.api.serializers.options.METHODS",
        "ProvenanceKind": "simulation.performance.specs.KINDS",
        "ComputedKind": "planner.inputs.profiles.spec.COMPUTED",
        "Engine": "simulation.performance.estimate.calibration.ENGINES",
        "ChannelKind": "planner.models.notification.Channel.Kind",
        "NoticeEvent": "planner.models.notification.Event",
        "DeliveryState": "planner.models.notification.Delivery.State",
        "TokenScope": "planner.models.user.ApiToken.Scope",
        "ProfileKind": "planner.models.profile.ProfileVersion.Kind",
        "CalibrationKind": "planner.models.profile.Calibration.Kind",
        "Precision": "planner.api.views.profiles.PRECISIONS",
        "MeasuredOrModelled": "planner.domain.provisioning.levels.SOURCES",
    },
}

# Work queue

if REDIS_URL:
    CELERY_BROKER_URL = REDIS_URL
else:
    CELERY_BROKER_TRANSPORT = "planner.config.folder_queue:Transport"
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "folder": str(HEADROOM_DATA_DIR / "queue"),
        "polling_interval": 0.1,  # s
    }
    CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True  # the result is in the run's row
CELERY_TASK_ACKS_LATE = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_DEFAULT_QUEUE = "short"
CELERY_WORKER_POOL = "solo"  # one run per process; see supervisor.start_workers
HEADROOM_WORKER_CONCURRENCY = env_int("HEADROOM_WORKER_CONCURRENCY", 2, most=1000)
HEADROOM_MAX_WAITING_RUNS = env_int("HEADROOM_MAX_WAITING_RUNS", 500)  # per person
HEADROOM_MAX_RUN_SECONDS = env_int("HEADROOM_MAX_RUN_SECONDS", 6 * 3600)
HEADROOM_MAX_RUN_MB = env_int(
    "HEADROOM_MAX_RUN_MB",
    environment.run_memory_mb(environment.memory_mb(), HEADROOM_WORKER_CONCURRENCY),
)
if ready_file := env_text("HEADROOM_WORKER_READY"):  # see planner.config.celery
    environment.folder("HEADROOM_WORKER_READY", Path(ready_file).parent)
CELERY_BEAT_SCHEDULE_FILENAME = str(HEADROOM_DATA_DIR / "beat-schedule")

# Time, language, log

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
LEVELS = ("INFO", "DEBUG", "WARNING", "ERROR", "CRITICAL")  # the first is the default
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"},
        "json": {"()": "planner.services.log_format.JsonLines"},
    },
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "formatter": env_choice("HEADROOM_LOG", ("plain", "json")),
        }
    },
    "root": {"handlers": ["stderr"], "level": env_choice("HEADROOM_LOG_LEVEL", LEVELS)},
    "loggers": {
        "django": {"handlers": [], "propagate": True},
        "celery": {"level": "WARNING"},  # INFO would log a sweep every few seconds
    },
}
