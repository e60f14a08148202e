"""Create the tables of version 0.1.0 before its release, as migrations 0001 to 0041 left them.

A database with all 41 of them counts as migrated. The number follows theirs because backups and
start-up checks compare the numbers. Columns and tables that only they used leave in 0043.
"""

import django.contrib.auth.validators
import django.utils.timezone
from django.db import migrations, models

from planner.models.workspace import MAIN, current_workspace_id

USER = "planner.user"
REPLACED = """
0001_initial 0002_hardware_profiles 0003_idempotency_of_calibrations 0004_provisioning_runs
0005_more_kinds_of_runs 0006_people 0007_backtest_runs 0008_sweeps 0009_outlook
0010_plan_in_force 0011_deployment_names 0012_price_lists 0013_tokens 0014_review
0015_live_sources 0016_run_order 0017_schedules 0018_workspaces 0019_main_workspace
0020_workspace_of_each_row 0021_workspace_of_schedules 0022_schedules_in_workspaces 0023_notices
0024_sources_of_workspaces 0025_proposal_replay 0026_review_of_each_workspace 0027_second_factor
0028_external_identity 0029_bucket_sources 0030_source_speed 0031_in_force_label 0032_run_reason
0033_in_force_versions 0034_proposal_outcome 0035_sessions 0036_account_notices 0037_retention
0038_audit_without_hashes 0039_counter 0040_run_parts 0041_attempts_without_account_news
""".split()  # noqa: SIM905 - names are easier to read than a list of strings


def table(name, options, /, **columns):
    """Return the operation that creates a table, with an ID unless a column is the key."""
    if not any(column.primary_key for column in columns.values()):
        number = models.BigAutoField(
            auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
        )
        columns = {"id": number, **columns}
    return migrations.CreateModel(name, list(columns.items()), options)


def own_table(name):
    return table(
        name,
        {
            "ordering": ["name"],
            "constraints": [once(f"{name.lower()}_name_once", "workspace", "name")],
        },
        name=models.CharField(max_length=80),
        facts=models.JSONField(),
        kind=models.CharField(default="assumed", max_length=16),
        source=models.CharField(max_length=500),
        version=models.PositiveIntegerField(default=1),
        created_at=models.DateTimeField(auto_now_add=True),
        updated_at=models.DateTimeField(auto_now=True),
        owner=owner(),
        workspace=workspace(),
    )


def once(name, *columns):
    return models.UniqueConstraint(fields=columns, name=name)


def once_per_key(name, person):
    return models.UniqueConstraint(
        condition=models.Q(("idempotency_key", ""), _negated=True),
        fields=("workspace", person, "idempotency_key"),
        name=name,
    )


def parent(to, related_name, **options):
    return models.ForeignKey(to, on_delete=models.CASCADE, related_name=related_name, **options)


def reference(to, related_name="+", **options):
    return models.ForeignKey(
        to, null=True, on_delete=models.SET_NULL, related_name=related_name, **options
    )


def owner():
    return models.ForeignKey(USER, blank=True, null=True, on_delete=models.SET_NULL)


def workspace():
    return parent("planner.workspace", "+", default=current_workspace_id)


def create_main_workspace(apps, schema_editor):
    apps.get_model("planner", "Workspace").objects.create(slug=MAIN, name="Main")


class Migration(migrations.Migration):
    replaces = [("planner", name) for name in REPLACED]

    initial = True
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
    ]

    operations = [
        table(
            "Workspace",
            {"ordering": ["pk"]},
            name=models.CharField(max_length=80, unique=True),
            slug=models.SlugField(max_length=40, unique=True),
            created_at=models.DateTimeField(auto_now_add=True),
            second_factor=models.BooleanField(default=False),
        ),
        table(
            "User",
            {"verbose_name": "user", "verbose_name_plural": "users"},
            password=models.CharField(max_length=128, verbose_name="password"),
            last_login=models.DateTimeField(blank=True, null=True, verbose_name="last login"),
            is_superuser=models.BooleanField(
                default=False,
                help_text="Designates that this user has all permissions without explicitly assigning them.",
                verbose_name="superuser status",
            ),
            username=models.CharField(
                error_messages={"unique": "A user with that username already exists."},
                help_text="Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.",
                max_length=150,
                unique=True,
                validators=[django.contrib.auth.validators.UnicodeUsernameValidator()],
                verbose_name="username",
            ),
            first_name=models.CharField(blank=True, max_length=150, verbose_name="first name"),
            last_name=models.CharField(blank=True, max_length=150, verbose_name="last name"),
            email=models.EmailField(blank=True, max_length=254, verbose_name="email address"),
            is_staff=models.BooleanField(
                default=False,
                help_text="Designates whether the user can log into this admin site.",
                verbose_name="staff status",
            ),
            is_active=models.BooleanField(
                default=True,
                help_text="Designates whether this user should be treated as active. Unselect this instead of deleting accounts.",
                verbose_name="active",
            ),
            date_joined=models.DateTimeField(
                default=django.utils.timezone.now, verbose_name="date joined"
            ),
            groups=models.ManyToManyField(
                blank=True,
                help_text="The groups this user belongs to. A user will get all permissions granted to each of their groups.",
                related_name="user_set",
                related_query_name="user",
                to="auth.group",
                verbose_name="groups",
            ),
            user_permissions=models.ManyToManyField(
                blank=True,
                help_text="Specific permissions for this user.",
                related_name="user_set",
                related_query_name="user",
                to="auth.permission",
                verbose_name="user permissions",
            ),
        ),
        table(
            "Membership",
            {
                "ordering": ["workspace", "pk"],
                "constraints": [once("membership_once", "user", "workspace")],
            },
            role=models.CharField(
                choices=[
                    ("viewer", "Viewer: reads"),
                    ("planner", "Planner: uploads, edits and runs"),
                    ("approver", "Approver: also decides on what others propose"),
                    ("admin", "Admin: also removes what others made, and invites people"),
                ],
                default="viewer",
                max_length=16,
            ),
            created_at=models.DateTimeField(auto_now_add=True),
            user=parent(USER, "memberships"),
            workspace=parent("planner.workspace", "memberships"),
        ),
        table(
            "ExternalIdentity",
            {"constraints": [once("identity_once", "issuer", "subject")]},
            issuer=models.URLField(max_length=300),
            subject=models.CharField(max_length=255),
            created_at=models.DateTimeField(auto_now_add=True),
            user=parent(USER, "identities"),
        ),
        table(
            "SecondFactor",
            {},
            sealed=models.TextField(),
            confirmed_at=models.DateTimeField(blank=True, null=True),
            last_step=models.BigIntegerField(default=0),
            recovery=models.JSONField(default=list),
            user=models.OneToOneField(
                on_delete=models.CASCADE, related_name="second_factor", to=USER
            ),
        ),
        table(
            "Session",
            {"ordering": ["-seen_at"]},
            session_data=models.TextField(verbose_name="session data"),
            expire_date=models.DateTimeField(db_index=True, verbose_name="expire date"),
            session_key=models.CharField(max_length=64, primary_key=True, serialize=False),
            begun_at=models.DateTimeField(),
            seen_at=models.DateTimeField(),
            address=models.CharField(blank=True, max_length=45),
            user=parent(USER, "sessions", null=True),
            browser=models.CharField(blank=True, db_default="", max_length=80),
        ),
        table(
            "AttemptWindow",
            {},
            key=models.CharField(max_length=64, primary_key=True, serialize=False),
            moments=models.JSONField(default=list),
            newest_at=models.DateTimeField(db_index=True),
        ),
        table(
            "ApiToken",
            {"ordering": ["-created_at", "-pk"]},
            name=models.CharField(max_length=60),
            scope=models.CharField(
                choices=[("all", "Everything that I may do"), ("read", "Read-only")],
                default="all",
                max_length=8,
            ),
            sha256=models.CharField(max_length=64, unique=True),
            created_at=models.DateTimeField(auto_now_add=True),
            expires_at=models.DateTimeField(),
            last_used_at=models.DateTimeField(blank=True, null=True),
            user=parent(USER, "api_tokens"),
            workspace=workspace(),
        ),
        table(
            "AccountNotice",
            {"ordering": ["-pk"]},
            at=models.DateTimeField(auto_now_add=True),
            text=models.CharField(max_length=300),
            seen_at=models.DateTimeField(null=True),
            mailbox=models.EmailField(blank=True, max_length=254),
            mail_due=models.DateTimeField(db_index=True, null=True),
            user=parent(USER, "account_notices", db_constraint=False),
        ),
        table(
            "KnownBrowser",
            {"constraints": [once("browser_of_person_once", "user", "browser", "network")]},
            browser=models.CharField(max_length=80),
            network=models.CharField(max_length=50),
            seen_at=models.DateTimeField(),
            user=parent(USER, "known_browsers", db_constraint=False),
        ),
        table(
            "Counter",
            {},
            kind=models.CharField(max_length=40, unique=True),
            last=models.BigIntegerField(default=0),
        ),
        table(
            "AuditHead",
            {},
            number=models.BigIntegerField(default=0),
            sha256=models.CharField(db_default="", default="", max_length=64),
        ),
        table(
            "AuditRecord",
            {"ordering": ["-number"]},
            number=models.BigIntegerField(unique=True),
            at=models.DateTimeField(db_index=True),
            actor=models.CharField(max_length=200),
            action=models.CharField(db_index=True, max_length=40),
            key=models.CharField(blank=True, max_length=120),
            name=models.CharField(blank=True, max_length=200),
            details=models.TextField(default="{}"),
            workspace=models.CharField(blank=True, max_length=40),
            previous=models.CharField(db_default="", default="", max_length=64),
            sha256=models.CharField(db_default="", default="", max_length=64),
        ),
        table(
            "Channel",
            {"ordering": ["pk"]},
            kind=models.CharField(
                choices=[("email", "E-mail"), ("webhook", "Webhook")], max_length=8
            ),
            address=models.CharField(max_length=500),
            events=models.JSONField(blank=True, default=list),
            salt=models.CharField(max_length=32),
            created_at=models.DateTimeField(auto_now_add=True),
            by=reference(USER),
            user=parent(USER, "channels", null=True),
            workspace=workspace(),
        ),
        table(
            "Delivery",
            {
                "ordering": ["-pk"],
                "indexes": [
                    models.Index(fields=["state", "due_at"], name="planner_del_state_553668_idx")
                ],
            },
            event=models.CharField(
                choices=[
                    ("proposal.opened", "A plan is proposed"),
                    ("review.requested", "A review is requested"),
                    ("mention", "Somebody mentions me"),
                    (
                        "proposal.decided",
                        "A proposal is approved, rejected or needs changes",
                    ),
                    ("plan.in-force", "The active plan changes"),
                    ("schedule.failed", "A scheduled plan failed or was missed"),
                    ("source.problem", "A live source has a problem"),
                    ("plan.drift", "Demand drift"),
                    ("data.removal", "Old runs or traces will be removed"),
                    ("digest", "The weekly digest"),
                    ("test", "A test message"),
                ],
                max_length=32,
            ),
            text=models.TextField(),
            url=models.CharField(blank=True, max_length=500),
            state=models.CharField(
                choices=[("waiting", "Waiting"), ("sent", "Sent"), ("failed", "Failed")],
                default="waiting",
                max_length=8,
            ),
            tries=models.PositiveIntegerField(default=0),
            due_at=models.DateTimeField(),
            problem=models.CharField(blank=True, max_length=500),
            created_at=models.DateTimeField(auto_now_add=True),
            sent_at=models.DateTimeField(null=True),
            channel=parent("planner.channel", "deliveries"),
            workspace=workspace(),
        ),
        table(
            "DeploymentName",
            {
                "ordering": ["rule"],
                "constraints": [once("deployment_rule_once", "workspace", "rule")],
            },
            rule=models.CharField(max_length=63),
            name=models.CharField(max_length=63),
            changed_at=models.DateTimeField(auto_now=True),
            by=reference(USER),
            workspace=workspace(),
        ),
        own_table("OwnGpu"),
        own_table("OwnModel"),
        own_table("PriceList"),
        table(
            "Calibration",
            {
                "ordering": ["-created_at", "-pk"],
                "constraints": [once_per_key("calibration_once_per_key", "owner")],
            },
            name=models.CharField(max_length=120),
            kind=models.CharField(
                choices=[("benchmark", "Benchmark rows"), ("kernels", "Measured kernels")],
                max_length=16,
            ),
            format=models.CharField(blank=True, max_length=40),
            file_name=models.CharField(max_length=255),
            sha256=models.CharField(db_index=True, max_length=64),
            bytes=models.BigIntegerField(),
            rows=models.PositiveIntegerField(default=0),
            report=models.JSONField(blank=True, default=dict),
            source=models.CharField(blank=True, max_length=500),
            store=models.CharField(blank=True, max_length=255),
            created_at=models.DateTimeField(auto_now_add=True),
            owner=owner(),
            idempotency_key=models.CharField(blank=True, max_length=120),
            request_sha256=models.CharField(blank=True, max_length=64),
            workspace=workspace(),
        ),
        table(
            "Profile",
            {"ordering": ["name"], "constraints": [once("profile_name_once", "workspace", "name")]},
            name=models.CharField(max_length=80),
            model=models.CharField(max_length=80),
            gpu=models.CharField(max_length=80),
            tp=models.PositiveIntegerField(default=1),
            arrangement=models.JSONField(blank=True, default=dict),
            created_at=models.DateTimeField(auto_now_add=True),
            owner=owner(),
            workspace=workspace(),
        ),
        table(
            "ProfileVersion",
            {
                "ordering": ["profile", "-version"],
                "constraints": [
                    once("profile_version_once", "profile", "version"),
                    once_per_key("profile_version_once_per_key", "created_by"),
                ],
            },
            version=models.PositiveIntegerField(),
            kind=models.CharField(
                choices=[
                    ("linear", "Linear"),
                    ("table", "Table"),
                    ("operator", "Operator"),
                    ("roofline", "Roofline"),
                ],
                max_length=16,
            ),
            limits=models.JSONField(),
            parameters=models.JSONField(blank=True, default=dict),
            curve=models.BinaryField(),
            checks=models.JSONField(blank=True, default=list),
            report=models.JSONField(blank=True, default=dict),
            provenance=models.CharField(default="measured", max_length=16),
            source=models.CharField(blank=True, max_length=500),
            store=models.CharField(blank=True, max_length=255),
            created_at=models.DateTimeField(auto_now_add=True),
            calibration=reference("planner.calibration", related_name="versions", blank=True),
            created_by=owner(),
            profile=parent("planner.profile", "versions"),
            idempotency_key=models.CharField(blank=True, max_length=120),
            request_sha256=models.CharField(blank=True, max_length=64),
            workspace=workspace(),
        ),
        table(
            "Scenario",
            {
                "ordering": ["-updated_at", "-pk"],
                "constraints": [once("scenario_name_once", "workspace", "name")],
            },
            name=models.CharField(max_length=120),
            document=models.TextField(),
            version=models.PositiveIntegerField(default=1),
            created_at=models.DateTimeField(auto_now_add=True),
            updated_at=models.DateTimeField(auto_now=True),
            owner=owner(),
            workspace=workspace(),
        ),
        table(
            "ScenarioVersion",
            {
                "ordering": ["scenario", "-number"],
                "constraints": [once("scenario_version_once", "scenario", "number")],
            },
            number=models.PositiveIntegerField(),
            name=models.CharField(max_length=120),
            document=models.TextField(),
            message=models.CharField(blank=True, max_length=500),
            created_at=models.DateTimeField(auto_now_add=True),
            author=reference(USER),
            origin=reference("planner.scenarioversion"),
            scenario=parent("planner.scenario", "versions"),
        ),
        table(
            "Trace",
            {
                "ordering": ["-created_at", "-pk"],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "refused"), _negated=True),
                        fields=("workspace", "sha256"),
                        name="trace_once",
                    ),
                    once("trace_name_once", "workspace", "name"),
                ],
            },
            name=models.SlugField(max_length=120),
            file_name=models.CharField(max_length=255),
            sha256=models.CharField(db_index=True, max_length=64),
            bytes=models.BigIntegerField(),
            state=models.CharField(
                choices=[
                    ("uploaded", "Uploaded"),
                    ("ready", "Ready"),
                    ("refused", "Refused"),
                ],
                default="uploaded",
                max_length=16,
            ),
            problem=models.TextField(blank=True),
            options=models.JSONField(blank=True, default=dict),
            kind=models.CharField(
                blank=True,
                choices=[("requests", "Requests"), ("demand", "Totals per interval (bin)")],
                max_length=16,
            ),
            format=models.CharField(blank=True, max_length=32),
            requests=models.BigIntegerField(default=0),
            rejected=models.BigIntegerField(default=0),
            start_at=models.DateTimeField(blank=True, null=True),
            end_at=models.DateTimeField(blank=True, null=True),
            report=models.JSONField(blank=True, default=dict),
            store=models.CharField(blank=True, max_length=255),
            created_at=models.DateTimeField(auto_now_add=True),
            owner=owner(),
            workspace=workspace(),
            removal_told_at=models.DateTimeField(blank=True, null=True),
        ),
        table(
            "Source",
            {"ordering": ["name"], "constraints": [once("source_name_once", "workspace", "name")]},
            name=models.SlugField(max_length=80),
            kind=models.CharField(
                choices=[
                    ("prometheus", "Prometheus"),
                    ("folder", "Folder of files"),
                    ("bucket", "Bucket of files"),
                    ("samples", "Samples sent by a program"),
                ],
                max_length=16,
            ),
            settings=models.JSONField(blank=True, default=dict),
            bin_s=models.PositiveIntegerField(default=300),
            every_s=models.PositiveIntegerField(default=300),
            paused=models.BooleanField(default=False),
            state=models.CharField(
                choices=[("new", "Not read yet"), ("read", "Read"), ("problem", "Problem")],
                default="new",
                max_length=16,
            ),
            problem=models.TextField(blank=True),
            read_at=models.DateTimeField(blank=True, null=True),
            read_to=models.DateTimeField(blank=True, null=True),
            due_at=models.DateTimeField(blank=True, null=True),
            reading_since=models.DateTimeField(blank=True, null=True),
            found=models.JSONField(blank=True, default=dict),
            store=models.CharField(blank=True, max_length=255),
            created_at=models.DateTimeField(auto_now_add=True),
            owner=owner(),
            trace=models.OneToOneField(
                blank=True,
                null=True,
                on_delete=models.SET_NULL,
                related_name="source",
                to="planner.trace",
            ),
            workspace=workspace(),
            speed=models.JSONField(blank=True, default=list),
        ),
        table(
            "SourceReading",
            {
                "ordering": ["-at", "-pk"],
                "indexes": [
                    models.Index(fields=["source", "sha256"], name="planner_sou_source__7a29e8_idx")
                ],
            },
            at=models.DateTimeField(auto_now_add=True),
            what=models.CharField(blank=True, max_length=255),
            sha256=models.CharField(blank=True, max_length=64),
            start_at=models.DateTimeField(blank=True, null=True),
            end_at=models.DateTimeField(blank=True, null=True),
            bins=models.PositiveIntegerField(default=0),
            requests=models.FloatField(default=0.0),
            problem=models.TextField(blank=True),
            source=parent("planner.source", "readings"),
        ),
        table(
            "Sweep",
            {"ordering": ["-created_at", "-pk"]},
            name=models.CharField(max_length=120),
            kind=models.CharField(max_length=16),
            document=models.TextField(),
            options=models.JSONField(blank=True, default=dict),
            axes=models.JSONField(),
            created_at=models.DateTimeField(auto_now_add=True),
            owner=owner(),
            scenario=reference("planner.scenario", related_name="sweeps", blank=True),
            workspace=workspace(),
        ),
        table(
            "Run",
            {
                "ordering": ["-created_at", "-pk"],
                "indexes": [
                    models.Index(
                        fields=["state", "heartbeat_at"], name="planner_run_state_185c0e_idx"
                    ),
                    models.Index(fields=["sweep", "-created_at", "-id"], name="run_newest"),
                    models.Index(
                        fields=["state", "-created_at", "-id"], name="run_newest_by_state"
                    ),
                    models.Index(fields=["name"], name="run_name"),
                ],
                "constraints": [once_per_key("run_once_per_key", "owner")],
            },
            kind=models.CharField(max_length=16),  # choices: see 0045
            state=models.CharField(
                choices=[
                    ("pending", "Waiting"),
                    ("running", "Running"),
                    ("completed", "Completed"),
                    ("failed", "Failed"),
                    ("errored", "Error"),
                    ("cancelled", "Cancelled"),
                ],
                default="pending",
                max_length=16,
            ),
            name=models.CharField(blank=True, max_length=120),
            document=models.TextField(blank=True),
            options=models.JSONField(blank=True, default=dict),
            seed=models.PositiveIntegerField(default=0),
            code_version=models.CharField(blank=True, max_length=64),
            progress=models.FloatField(default=0.0),
            stage=models.CharField(blank=True, max_length=120),
            log=models.TextField(blank=True),
            problem=models.TextField(blank=True),
            traceback=models.TextField(blank=True),
            result=models.JSONField(blank=True, default=dict),
            store=models.CharField(blank=True, max_length=255),
            cancel_requested=models.BooleanField(default=False),
            attempts=models.PositiveIntegerField(default=0),
            heartbeat_at=models.DateTimeField(blank=True, null=True),
            enqueued_at=models.DateTimeField(blank=True, null=True),
            idempotency_key=models.CharField(blank=True, max_length=120),
            created_at=models.DateTimeField(auto_now_add=True),
            started_at=models.DateTimeField(blank=True, null=True),
            finished_at=models.DateTimeField(blank=True, null=True),
            owner=owner(),
            scenario=reference("planner.scenario", related_name="runs", blank=True),
            trace=reference("planner.trace", related_name="runs", blank=True),
            resolved=models.JSONField(blank=True, default=dict),
            cell=models.PositiveIntegerField(blank=True, null=True),
            sweep=reference("planner.sweep", related_name="runs", blank=True),
            workspace=workspace(),
            reason=models.CharField(blank=True, db_default="", default="", max_length=60),
            removal_told_at=models.DateTimeField(blank=True, null=True),
            failures=models.PositiveIntegerField(db_default=0, default=0),
            step=models.PositiveIntegerField(db_default=0, default=0),
            worker=models.CharField(blank=True, db_default="", default="", max_length=64),
        ),
        table(
            "RunPart",
            {
                "ordering": ["run", "step", "place"],
                "constraints": [once("run_part_once", "run", "step", "place")],
            },
            step=models.PositiveIntegerField(),
            place=models.PositiveIntegerField(),
            name=models.CharField(max_length=200),
            state=models.CharField(
                choices=[("waiting", "Waiting"), ("running", "Running"), ("done", "Done")],
                default="waiting",
                max_length=8,
            ),
            worker=models.CharField(blank=True, max_length=64),
            heartbeat_at=models.DateTimeField(blank=True, null=True),
            progress=models.FloatField(default=0.0),
            failures=models.PositiveIntegerField(default=0),
            result=models.BinaryField(blank=True, null=True),
            run=parent("planner.run", "parts"),
        ),
        table(
            "PlanInForce",
            {"ordering": ["-since", "-pk"]},
            number=models.PositiveIntegerField(),
            scenario=models.CharField(max_length=120),
            policy=models.CharField(max_length=161),
            repeat=models.CharField(max_length=8),
            zone=models.CharField(max_length=64),
            begins=models.DateTimeField(),
            ends=models.DateTimeField(),
            pools=models.JSONField(),
            since=models.DateTimeField(),
            until=models.DateTimeField(null=True),
            by=reference(USER),
            run=reference("planner.run"),
            workspace=workspace(),
            label=models.CharField(blank=True, max_length=161),
            message=models.CharField(blank=True, db_default="", default="", max_length=500),
            origin=reference("planner.planinforce"),
        ),
        table(
            "Proposal",
            {
                "ordering": ["-pk"],
                "indexes": [models.Index(fields=["state"], name="planner_pro_state_e08700_idx")],
            },
            title=models.CharField(max_length=160),
            message=models.TextField(blank=True),
            state=models.CharField(
                choices=[
                    ("draft", "Draft"),
                    ("open", "Open"),
                    ("changes", "Changes requested"),
                    ("approved", "Approved"),
                    ("rejected", "Rejected"),
                    ("withdrawn", "Withdrawn"),
                ],
                default="open",
                max_length=16,
            ),
            rule=models.CharField(blank=True, max_length=200),
            revision=models.PositiveIntegerField(default=1),
            options=models.JSONField(default=dict),
            policy=models.CharField(max_length=161),
            usd_30d=models.FloatField(null=True),
            created_at=models.DateTimeField(auto_now_add=True),
            updated_at=models.DateTimeField(auto_now=True),
            decided_at=models.DateTimeField(null=True),
            author=reference(USER),
            base=reference("planner.planinforce"),
            base_run=reference("planner.run"),
            reviewers=models.ManyToManyField(related_name="+", to=USER),
            run=reference("planner.run"),
            scenario=reference("planner.scenario"),
            version=reference("planner.scenarioversion"),
            replay=reference("planner.run"),
            workspace=workspace(),
            outcome=reference("planner.run"),
        ),
        migrations.AddField(
            model_name="planinforce",
            name="proposal",
            field=reference("planner.proposal", related_name="plans"),
        ),
        table(
            "ProposalEntry",
            {"ordering": ["pk"]},
            kind=models.CharField(
                choices=[
                    ("opened", "proposed it"),
                    ("ready", "marked it ready for review"),
                    ("requested", "requested a review"),
                    ("comment", "commented"),
                    ("approved", "approved"),
                    ("changes", "requested changes"),
                    ("amended", "amended it"),
                    ("rejected", "rejected it"),
                    ("withdrawn", "withdrew it"),
                    ("in-force", "activated it"),
                ],
                max_length=16,
            ),
            revision=models.PositiveIntegerField(),
            rule=models.CharField(blank=True, max_length=200),
            text=models.TextField(blank=True),
            anchor=models.JSONField(default=dict),
            at=models.DateTimeField(),
            by=reference(USER),
            mentions=models.ManyToManyField(related_name="+", to=USER),
            proposal=parent("planner.proposal", "entries"),
            run=reference("planner.run"),
        ),
        table(
            "ReviewRules",
            {
                "verbose_name_plural": "review rules",
                "constraints": [once("review_rules_once", "workspace")],
            },
            approvals=models.PositiveSmallIntegerField(default=1),
            self_approval=models.BooleanField(default=False),
            admin_above_usd_30d=models.FloatField(blank=True, null=True),
            required=models.BooleanField(default=False),
            changed_at=models.DateTimeField(auto_now=True),
            by=reference(USER),
            workspace=workspace(),
        ),
        table(
            "Schedule",
            {
                "ordering": ["name"],
                "constraints": [once("schedule_name_once", "workspace", "name")],
            },
            name=models.CharField(max_length=120),
            kind=models.CharField(default="plan", max_length=16),  # choices: see 0047
            options=models.JSONField(blank=True, default=dict),
            policy=models.CharField(blank=True, max_length=161),
            cron=models.CharField(max_length=120),
            zone=models.CharField(default="UTC", max_length=64),
            most_replicas=models.FloatField(blank=True, null=True),
            most_cost=models.FloatField(blank=True, null=True),
            paused=models.BooleanField(default=False),
            next_due=models.DateTimeField(),
            created_at=models.DateTimeField(auto_now_add=True),
            owner=reference(USER, blank=True),
            scenario=reference("planner.scenario", related_name="schedules"),
            workspace=workspace(),
        ),
        table(
            "Firing",
            {
                "ordering": ["-due_at", "-pk"],
                "constraints": [once("fired_once_per_moment", "schedule", "due_at")],
            },
            due_at=models.DateTimeField(),
            as_of=models.DateTimeField(null=True),
            fired_at=models.DateTimeField(),
            settled_at=models.DateTimeField(null=True),
            state=models.CharField(
                choices=[
                    ("running", "Running"),
                    ("approved", "Approved by rule"),
                    ("review", "To be reviewed"),
                    ("failed", "Failed"),
                    ("missed", "Missed"),
                ],
                max_length=16,
            ),
            difference=models.JSONField(blank=True, default=dict),
            words=models.TextField(blank=True),
            by=reference(USER, blank=True),
            proposal=reference("planner.proposal", related_name="firings"),
            run=reference("planner.run"),
            schedule=parent("planner.schedule", "firings"),
            workspace=workspace(),
        ),
        table(
            "Outcome",
            {
                "ordering": ["-begins", "-pk"],
                "constraints": [once("judged_once_per_stretch", "plan", "begins")],
            },
            begins=models.DateTimeField(),
            ends=models.DateTimeField(),
            state=models.CharField(
                choices=[("running", "Running"), ("done", "Done"), ("failed", "Failed")],
                default="running",
                max_length=16,
            ),
            begun_at=models.DateTimeField(),
            figures=models.JSONField(blank=True, default=dict),
            words=models.TextField(blank=True),
            plan=parent("planner.planinforce", "outcomes"),
            workspace=workspace(),
        ),
        migrations.RunPython(create_main_workspace, migrations.RunPython.noop),
    ]
