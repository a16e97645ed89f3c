"""The official client, driven by lines of JSON: `{"service", "operation", "arguments"}`, answered by `{"ok"}` or `{"error"}`.

An operation that begins with `wait:` names one of the client's own waiters.
"""

import json
import sys

import boto3
import botocore.exceptions
from botocore.config import Config

OPTIONS = json.loads(sys.argv[1])
# One attempt: whoever drives it wants to see what went wrong.
CONFIG = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
CLIENTS = {}


def client(service):
    if service not in CLIENTS:
        CLIENTS[service] = boto3.client(
            service,
            endpoint_url=OPTIONS["url"],
            region_name=OPTIONS["region"],
            aws_access_key_id=OPTIONS["access_key_id"],
            aws_secret_access_key=OPTIONS["secret_access_key"],
            config=CONFIG,
        )
    return CLIENTS[service]


def call(service, operation, arguments):
    if operation.startswith("wait:"):
        limits = {"Delay": 1, "MaxAttempts": 90}
        client(service).get_waiter(operation[5:]).wait(**arguments, WaiterConfig=limits)
        return None
    answer = getattr(client(service), operation)(**arguments)
    answer.pop("ResponseMetadata", None)
    return answer


for line in sys.stdin:
    asked = json.loads(line)
    try:
        said = {"ok": call(asked["service"], asked["operation"], asked["arguments"])}
    except botocore.exceptions.ClientError as error:
        answer = error.response
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        said = {"error": answer["Error"]["Code"], "message": answer["Error"].get("Message", ""), "status": status}
    except botocore.exceptions.BotoCoreError as error:
        said = {"error": type(error).__name__, "message": str(error), "status": 0}
    print(json.dumps(said, default=str), flush=True)
