"""moto's server as the control plane: signatures and permissions are checked.

    control_plane.py '{"network": "127.77", "region": "us-east-1", "policy": {…}, "parameters": {…}, "secrets": {…}}'

Makes a user with that policy, a cluster and what belongs to it, turns the checks on, prints one line of JSON and serves
until its standard input ends. What moto gets wrong and a provider cannot avoid is put right here, and nothing else: the
states of tasks are the front's (front.rs).
"""

import hashlib
import hmac
import itertools
import json
import os
import sys
import threading
from datetime import datetime, timedelta, timezone
from urllib.parse import parse_qsl, quote

OPTIONS = json.loads(sys.argv[1])
# Images of machines are of no use here, and take a second to load.
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"

from moto import settings
from moto.core import DEFAULT_ACCOUNT_ID as ACCOUNT
from moto.core.responses import ActionAuthenticatorMixin
from moto.codebuild.models import codebuild_backends
from moto.ec2.models import ec2_backends
from moto.ecr.models import ecr_backends
from moto.ecs import models as ecs
from moto.iam.models import iam_backends
from moto.moto_api import state_manager
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.s3.models import s3_backends
from moto.secretsmanager.models import secretsmanager_backends
from moto.ssm.models import ssm_backends
from werkzeug.serving import make_server

REGION = OPTIONS["region"]
NUMBERS = itertools.count()
# The secrets of users, by the ids of their keys.
SECRETS = {}


def next_address():
    """The address of a task: on the loopback, where this machine can reach it."""
    number = next(NUMBERS)
    return f"{OPTIONS['network']}.{number // 250 + 1}.{number % 250 + 1}"


def without_missing_memory(definition):
    """Containers on Fargate need no memory of their own; moto adds up what is not there."""
    return {"CPU": 0, "MEMORY": 0, "PORTS": [], "PORTS_UDP": []}


def with_network(original):
    """Security groups may be left out (the default one is meant), and an address may be public."""

    def run_task(self, cluster, definition, count, overrides, started_by, tags, launch_type, network=None, *rest, **named):
        wanted = (network or {}).get("awsvpcConfiguration", {})
        if network:
            wanted.setdefault("securityGroups", [])
        tasks = original(self, cluster, definition, count, overrides, started_by, tags, launch_type, network, *rest, **named)
        if wanted.get("assignPublicIp") == "ENABLED":
            backend = ec2_backends[self.account_id][self.region_name]
            for task in tasks:
                for detail in task.attachments[0]["details"]:
                    if detail["name"] == "networkInterfaceId":
                        interface = backend.enis[detail["value"]]
                        interface.public_ip = interface.private_ip_address
        return tasks

    return run_task


def without_scopes(policy):
    """moto knows no resources and no conditions of most services: with either, it permits nothing."""
    statements = policy["Statement"]
    for statement in statements if isinstance(statements, list) else [statements]:
        statement["Resource"] = "*"
        statement.pop("Condition", None)
    return policy


def signature(secret, scope, date, *canonical):
    """Signature Version 4 of a request in its canonical parts."""
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    key = b"AWS4" + secret.encode()
    for word in scope.split("/"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, digest])
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def presigned(application):
    """A query that is signed is checked here, and becomes a signed header: moto knows no other way to say who asks."""

    def refuse(start_response, code):
        start_response("403 Forbidden", [("Content-Type", "application/xml")])
        return [f"<Error><Code>{code}</Code><Message>the query</Message></Error>".encode()]

    def call(environ, start_response):
        pairs = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        query = dict(pairs)
        if "X-Amz-Signature" not in query:
            return application(environ, start_response)
        key, _, scope = query["X-Amz-Credential"].partition("/")
        secret, date, host = SECRETS.get(key), query["X-Amz-Date"], environ["HTTP_HOST"]
        if secret is None:
            return refuse(start_response, "InvalidAccessKeyId")
        method, path = environ["REQUEST_METHOD"], quote(environ["PATH_INFO"], safe="/-_.~")
        known = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in pairs if name != "X-Amz-Signature")
        canonical = "&".join(f"{name}={value}" for name, value in known)
        wanted = signature(secret, scope, date, method, path, canonical, f"host:{host}\n", "host", "UNSIGNED-PAYLOAD")
        if query["X-Amz-SignedHeaders"] != "host" or not hmac.compare_digest(wanted, query["X-Amz-Signature"]):
            return refuse(start_response, "SignatureDoesNotMatch")
        begin = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
        if datetime.now(timezone.utc) > begin + timedelta(seconds=int(query["X-Amz-Expires"])):
            return refuse(start_response, "AccessDenied")
        signed = "host;x-amz-content-sha256;x-amz-date"
        headers = f"host:{host}\nx-amz-content-sha256:UNSIGNED-PAYLOAD\nx-amz-date:{date}\n"
        own = signature(secret, scope, date, method, path, "", headers, signed, "UNSIGNED-PAYLOAD")
        environ["QUERY_STRING"] = ""
        environ["HTTP_X_AMZ_DATE"] = date
        environ["HTTP_X_AMZ_CONTENT_SHA256"] = "UNSIGNED-PAYLOAD"
        environ["HTTP_AUTHORIZATION"] = (
            f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={signed}, Signature={own}"
        )
        return application(environ, start_response)

    return call


def prepare():
    ecs.random_private_ip = next_address
    backend = ecs.EC2ContainerServiceBackend
    backend._calculate_task_resource_requirements = staticmethod(without_missing_memory)
    backend.run_task = with_network(backend.run_task)
    # Looking at a task does not move it on.
    state_manager.set_transition("ecs::task", {"progression": "manual", "times": 10**9})
    iam = iam_backends[ACCOUNT]["aws"]
    keys = {}
    for name, policy in (("operator", OPTIONS["policy"]), ("stranger", None)):
        iam.create_user(REGION, name)
        if policy:
            iam.put_user_policy(name, "policy", json.dumps(without_scopes(policy)))
        key = iam.create_access_key(name)
        keys[name] = {"access_key_id": key.access_key_id, "secret_access_key": key.secret_access_key}
        SECRETS[key.access_key_id] = key.secret_access_key
    ecs.ecs_backends[ACCOUNT][REGION].create_cluster("sandboxes")
    ec2 = ec2_backends[ACCOUNT][REGION]
    vpc = ec2.get_default_vpc() or ec2.create_default_vpc()
    group = ec2.create_security_group("sandboxes", "reached by the tests", vpc_id=vpc.id)
    subnets = sorted(subnet.id for zone in ec2.subnets.values() for subnet in zone.values() if subnet.vpc_id == vpc.id)
    s3_backends[ACCOUNT]["aws"].create_bucket("sandbox-staging", REGION)
    ecr_backends[ACCOUNT][REGION].create_repository("sandbox-images", None, None, None, "MUTABLE", [])
    codebuild_backends[ACCOUNT][REGION].create_project(
        project_name="sandbox-build",
        description=None,
        project_source={"type": "S3", "location": "sandbox-staging/none"},
        artifacts={"type": "NO_ARTIFACTS"},
        environment={"type": "LINUX_CONTAINER", "image": "x", "computeType": "BUILD_GENERAL1_SMALL"},
        service_role=f"arn:aws:iam::{ACCOUNT}:role/build",
        tags=None,
        cache=None,
        timeout=None,
        queued_timeout=None,
        source_version=None,
        logs_config=None,
        vpc_config=None,
    )
    for name, value in OPTIONS["parameters"].items():
        ssm_backends[ACCOUNT][REGION].put_parameter(name, "", value, "String", "", "", False, [], "text", None, None)
    secrets = {}
    for name, value in OPTIONS["secrets"].items():
        created = secretsmanager_backends[ACCOUNT][REGION].create_secret(name, value, None, None, [], None, None, [], False)
        secrets[name] = json.loads(created)["ARN"]
    settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
    ActionAuthenticatorMixin.request_count = 0
    return {
        "account": ACCOUNT,
        "region": REGION,
        "cluster": "sandboxes",
        "subnets": subnets[:3],
        "security_group": group.id,
        "bucket": "sandbox-staging",
        "secrets": secrets,
        **keys,
    }


def end_with_input():
    while os.read(0, 4096):
        pass
    os._exit(0)


def main():
    facts = prepare()
    application = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, presigned(application), threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=end_with_input, daemon=True).start()
    print(json.dumps({"address": f"127.0.0.1:{server.port}", **facts}), flush=True)
    server.serve_forever()


main()
