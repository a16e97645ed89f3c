//! What the recordings do not hold and what their requests must come to: the answers' contents, and where sandboxes are
//! in the end.

use serde_json::{Value, json};

/// Where the sandbox of a recording is when the recording is over.
pub(crate) const ENDS: [(&str, &str); 22] = [
    ("01-create-from-image", "started"),
    ("03-create-from-snapshot", "started"),
    ("39-stop", "stopped"),
    ("41-start", "started"),
    ("42-stop-force", "stopped"),
    ("43-resize", "stopped"),
    ("44-archive", "archived"),
    ("45-start-from-archive", "started"),
    ("46-pause", "paused"),
    ("47-resume-via-start", "started"),
    ("52-get-drop-retried", "started"),
    ("55-create-error-state", "error"),
    ("56-create-build-failed", "build_failed"),
    ("57-create-timeout", "creating"),
    ("91-delete-wait", "gone"),
    ("93-sandbox-delete-ephemeral", "gone"),
    ("ref-11-connect", "stopped"),
    ("ref-12-status-stopped", "started"),
    ("ref-13-create-timeout", "creating"),
    ("ref-15-create-error-state", "error"),
    ("ref-17-close", "gone"),
    ("sync-05-delete", "gone"),
];

/// What the answer to a request of a recording says, as far as it is JSON. Requests are counted from 0.
pub(crate) fn said(file: &str, request: usize, recorded: &Value) -> Option<Value> {
    Some(match (file, request) {
        ("06-get-by-id" | "07-get-by-name", 0) => {
            json!({"name": "golden-a", "cpu": 2, "memory": 4, "disk": 10, "autoStopInterval": 30, "state": "started"})
        }
        ("09-list-two-pages", 0) => json!({"nextCursor": "3"}),
        ("09-list-two-pages", 1) => json!({"nextCursor": null}),
        ("10-exec", 0) => json!({"exitCode": 3, "result": "out\nerr\nbary\n/work\n"}),
        ("11-exec-minimal", 0) => json!({"exitCode": 0, "result": ""}),
        ("14-exec-bad-cwd", 0) => json!({"exitCode": -1}),
        ("16-exec-nonutf8", 0) => json!({"exitCode": 0, "result": "\u{fffd}\u{fffd}"}),
        ("17-session-sync", 1) => json!({"exitCode": 0, "stdout": "o\n", "stderr": "e\n"}),
        ("18-session-async", 2) => json!({"exitCode": 0, "command": "read L; echo got=$L; echo e2 >&2"}),
        ("18-session-async", 3) => json!({"stdout": "hello\ngot=hello\n", "stderr": "e2\n"}),
        ("18-session-async", 4) => json!({"code": "COMMAND_ALREADY_COMPLETED"}),
        ("20-session-admin", 0) => json!([{"sessionId": "s1"}]),
        ("22-pty-resize-kill", 1 | 3) => json!({"id": "p2", "cols": 200, "rows": 50}),
        ("24-upload-bytes", 0) => json!({"files": [{"path": "/work/dir with space/ü.bin", "bytes": 8}]}),
        ("26-upload-many", 0) => json!({"files": [{"path": "/work/m/a.txt"}, {"path": "/work/m/b.txt"}]}),
        ("35-fs-misc", 2) => {
            json!({"permissions": "0600", "owner": "root", "group": "root", "size": 5, "isDir": false})
        }
        ("35-fs-misc", 4) => json!([
            {"file": "/work/m/b.txt", "line": 1, "content": "local"},
            {"file": "/work/up.txt", "line": 1, "content": "local"},
        ]),
        ("35-fs-misc", 5) => {
            let files = ["/work/m/a.txt", "/work/m/as.txt", "/work/m/b.txt", "/work/m/s.txt", "/work/up.txt"];
            json!({"files": files})
        }
        ("35-fs-misc", 6) => json!([
            {"file": "/work/up.txt", "success": true}, {"file": "/work/zz", "success": false},
        ]),
        ("38-ssh", 1) => json!({"valid": true}),
        ("40-exec-while-stopped", 0) => {
            json!({"message": "bad request: failed to get runner info: sandbox is stopped"})
        }
        ("43-resize", 0) => json!({"state": "resizing", "cpu": 4, "memory": 8, "disk": 20}),
        ("48-settings", 0) => json!({"labels": {"a": "b"}}),
        ("48-settings", 5) => json!({"ttlMinutes": 90, "autoPauseInterval": 0, "autoDeleteInterval": 30}),
        ("53-create-429", 0) => json!({"message": "Rate limit exceeded"}),
        ("54-create-conflict", 0) => json!({"message": "Sandbox with name golden-a already exists"}),
        ("60-bad-key", 0) => json!({"message": "Invalid credentials"}),
        ("61-jwt-org", 0) => json!({"name": "golden-b", "organizationId": "org-1"}),
        ("gen-02-upload-v2-multipart", 0) => json!({"name": "g.txt", "path": "/work/g.txt"}),
        ("ref-03-exec", 0) => json!({"exitCode": 4, "result": "o\ne\n"}),
        ("ref-08-exec-401", 0) => json!({"message": "nope"}),
        ("sync-02-exec", 0) => json!({"exitCode": 0, "result": "hi\n"}),
        // What the model's provider tries a new sandbox with.
        _ if recorded["json"]["command"] == "printf nemo-rl-sandbox-ready" => {
            json!({"exitCode": 0, "result": "nemo-rl-sandbox-ready"})
        }
        _ => return None,
    })
}

/// The contents of the files that come with an answer.
pub(crate) fn downloaded(file: &str, request: usize) -> Option<Vec<&'static [u8]>> {
    Some(match (file, request) {
        ("30-download", 0) => vec![b"hello \x00\xff"],
        ("31-download-to-path", 0) => vec![b"local"],
        ("32-download-missing", 0) => vec![],
        ("33-download-many", 0) => vec![b"a"],
        ("34-download-empty", 0) => vec![b""],
        ("gen-03-download-get", 0) => vec![b"gen"],
        ("ref-09-upload", 1) => vec![b"data"],
        ("ref-09-upload", 2) => vec![],
        ("sync-04-download", 0) => vec![b"sync-data"],
        _ => return None,
    })
}

/// Whether a value has at least what another has: all its keys, all its items.
pub(crate) fn holds(value: &Value, wanted: &Value) -> bool {
    match (value, wanted) {
        (Value::Object(value), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| value.get(key).is_some_and(|value| holds(value, wanted)))
        }
        (Value::Array(value), Value::Array(wanted)) => {
            value.len() == wanted.len() && value.iter().zip(wanted).all(|(value, wanted)| holds(value, wanted))
        }
        _ => value == wanted,
    }
}
