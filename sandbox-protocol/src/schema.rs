//! Holds the code to `schema/v1.json`: what is in there must be here, unchanged; what is here may be more.

use std::collections::BTreeMap;

use sandbox_core::{ControlRequest, ErrorKind, ExecRequest, SandboxError};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    FLAG_END, FLAG_MORE, FrameKind, GENERATION, MAGIC,
    dispatch::{AcceptPayload, ControlPayload, OpenPayload, ReplyPayload},
    hello::Hello,
    limits::{DATA_FRAME_COST, HEADER_BYTES, MIN_WINDOW_BYTES},
    methods,
    wire_error::WireError,
};

const FROZEN: &str = include_str!("../schema/v1.json");

fn fields<T: Serialize>(message: &T) -> Vec<String> {
    let json = serde_json::to_value(message).expect("a message is JSON");
    json.as_object().expect("a message is an object").keys().cloned().collect()
}

macro_rules! messages {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), fields(&methods::$name::default()))),*]
    };
}

/// The schema of this code.
fn current() -> Value {
    let kinds: BTreeMap<_, _> = FrameKind::ALL
        .iter()
        .map(|kind| (kind.as_str(), json!({"number": kind.code(), "max_bytes": kind.max_bytes()})))
        .collect();
    let error = SandboxError::lost("x", sandbox_core::Admitted::No);
    let hello = Hello { token: Some(Default::default()), ..Hello::default() };
    let mut payloads = BTreeMap::from([
        ("hello", fields(&hello)),
        ("hello.limits", fields(&hello.limits)),
        ("open", fields(&OpenPayload { request_bytes: Some(0), ..Default::default() })),
        ("accept", fields(&AcceptPayload { reply_bytes: Some(0), ..Default::default() })),
        ("control", fields(&ControlPayload::default())),
        ("reply", fields(&ReplyPayload { number: 0, reply: Some(Default::default()), error: Some((&error).into()) })),
        ("error", fields(&WireError::from(&error))),
        ("ExecStart", fields(&methods::ExecStart::new(ExecRequest::shell("true")))),
    ]);
    payloads.extend(messages![
        ExecStarted,
        ExecAttach,
        ExecAttached,
        ExecLogs,
        ExecLogsAt,
        ExecInfo,
        ExecList,
        ExecWait,
        ExecWaited,
        ExecSignal,
        PtyCreate,
        PtyAttachRequest,
        PtyInfo,
        PtyList,
        FilePath,
        FileRead,
        FileWrite,
        BytesMoved,
        FileList,
        FileRemove,
        FileWriteFd,
        FileReadFd,
        FileReadFdDone,
        TarIn,
        PortOpen,
        PortListen,
        UnixListen,
        PortListening,
        PortAccept,
        TtlRenew,
        TtlRenewed,
        AgentInfo,
        EntrypointInfo,
        HostsSet,
        Shutdown,
    ]);
    let controls: Vec<Value> = [
        ControlRequest::CloseInput,
        ControlRequest::Signal(1),
        ControlRequest::Kill,
        ControlRequest::Resize { rows: 1, cols: 2 },
        ControlRequest::Detach,
    ]
    .iter()
    .map(|request| serde_json::to_value(request).expect("a request is JSON"))
    .collect();
    let errors: BTreeMap<_, _> = ErrorKind::ALL.iter().map(|kind| (kind.as_str(), kind.code())).collect();
    json!({
        "magic": MAGIC,
        "generation": GENERATION,
        "header": {
            "bytes": HEADER_BYTES,
            "little_endian": ["payload_length:u32", "stream:u32", "kind:u8", "channel:u8", "flags:u16"],
        },
        "flags": {"more": FLAG_MORE, "end": FLAG_END},
        "data_frame_cost": DATA_FRAME_COST,
        "min_window_bytes": MIN_WINDOW_BYTES,
        "frames": kinds,
        "controls": controls,
        "errors": errors,
        "methods": methods::ALL,
        "fields": payloads,
    })
}

/// Everything of the frozen schema that the code does not have any more.
fn missing(path: &str, frozen: &Value, code: &Value) -> Vec<String> {
    match (frozen, code) {
        (Value::Object(frozen), Value::Object(code)) => frozen
            .iter()
            .flat_map(|(key, value)| match code.get(key) {
                Some(now) => missing(&format!("{path}.{key}"), value, now),
                None => vec![format!("{path}.{key} was removed")],
            })
            .collect(),
        // The parts of a header have places; elements of other lists do not.
        (Value::Array(frozen), Value::Array(code)) if !path.ends_with("little_endian") => frozen
            .iter()
            .filter(|value| !code.contains(value))
            .map(|value| format!("{path}: {value} was removed"))
            .collect(),
        _ if frozen == code => Vec::new(),
        _ => vec![format!("{path} was {frozen} and is {code}")],
    }
}

#[test]
fn nothing_of_the_frozen_schema_is_removed_or_renumbered() {
    let frozen: Value = serde_json::from_str(FROZEN).expect("the schema is JSON");
    let mut code = current();
    // A later generation of the code still speaks this one.
    assert!(code["generation"].as_u64() >= frozen["generation"].as_u64());
    code["generation"] = frozen["generation"].clone();
    let missing = missing("schema", &frozen, &code);
    // What to freeze after an addition is shown by cargo test -- --nocapture.
    println!("{}", serde_json::to_string_pretty(&code).expect("the schema is JSON"));
    assert!(missing.is_empty(), "the protocol is append-only:\n{}", missing.join("\n"));
}

#[test]
fn removals_and_renumberings_are_found_and_additions_are_not() {
    let frozen = json!({"a": {"x": 1, "y": ["p", "q"]}, "little_endian": ["p", "q"]});
    let same = |code: Value| missing("schema", &frozen, &code);
    assert!(same(json!({"a": {"x": 1, "y": ["n", "q", "p"], "z": 0}, "little_endian": ["p", "q"], "b": 1})).is_empty());
    assert_eq!(same(json!({"a": {"x": 2, "y": ["p"]}, "little_endian": ["q", "p"]})).len(), 3);
    assert_eq!(same(json!({"little_endian": ["p", "q", "r"]})).len(), 2);
}

#[test]
fn the_header_is_laid_out_as_the_schema_says() {
    let frame = crate::Frame::new(FrameKind::Data, 0x0403_0201, "abc").with_channel(5).with_flags(0x0706);
    assert_eq!(frame.encode(), [3, 0, 0, 0, 1, 2, 3, 4, 8, 5, 6, 7, b'a', b'b', b'c']);
}
