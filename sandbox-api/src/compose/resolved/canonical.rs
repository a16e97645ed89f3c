//! Values of a service in the one way in which the normal form writes them.

use std::time::Duration;

use serde_json::{Map, Value as Json, json};

use crate::compose::load::{bytes, duration};

/// In bytes.
const SIZES: [&str; 4] = ["mem_limit", "mem_reservation", "memswap_limit", "shm_size"];

/// Of a health check, as durations.
const TIMES: [&str; 4] = ["interval", "timeout", "start_period", "start_interval"];

/// Said by silence where they are false.
const FLAGS: [&str; 5] = ["oom_kill_disable", "privileged", "read_only", "stdin_open", "tty"];

/// Lists of text, also where an item looks like a number.
const TEXTS: [&str; 2] = ["expose", "group_add"];

/// Doubles every dollar sign: what is printed is a document, whose variables are filled in again when it is read.
pub(super) fn escape(value: &mut Json) {
    match value {
        Json::String(text) if text.contains('$') => *text = text.replace('$', "$$"),
        Json::Array(list) => list.iter_mut().for_each(escape),
        Json::Object(map) => map.values_mut().for_each(escape),
        _ => {}
    }
}

/// Sizes, times, numbers, devices and hosts of a service.
pub(super) fn service(service: &mut Map<String, Json>) {
    for key in SIZES {
        change(service, key, size);
    }
    change(service, "cpus", number);
    change(service, "stop_grace_period", time);
    service.retain(|key, value| !(FLAGS.contains(&key.as_str()) && *value == Json::Bool(false)));
    for key in TEXTS {
        each(service, key, |item| item.is_number().then(|| json!(item.to_string())));
    }
    each(service, "devices", device);
    each(service, "extra_hosts", host);
    if let Some(Json::Object(check)) = service.get_mut("healthcheck") {
        for key in TIMES {
            change(check, key, time);
        }
    }
    let resources = service.get_mut("deploy").and_then(|deploy| deploy.get_mut("resources"));
    if let Some(Json::Object(resources)) = resources {
        for part in ["limits", "reservations"] {
            if let Some(Json::Object(part)) = resources.get_mut(part) {
                change(part, "memory", size);
                change(part, "cpus", number);
            }
        }
    }
}

fn change(map: &mut Map<String, Json>, key: &str, to: impl Fn(&Json) -> Option<Json>) {
    if let Some(value) = map.get_mut(key)
        && let Some(new) = to(value)
    {
        *value = new;
    }
}

fn each(map: &mut Map<String, Json>, key: &str, to: impl Fn(&Json) -> Option<Json>) {
    if let Some(Json::Array(list)) = map.get_mut(key) {
        for item in list {
            if let Some(new) = to(item) {
                *item = new;
            }
        }
    }
}

/// A size as a number of bytes, in text as the normal form has it.
fn size(value: &Json) -> Option<Json> {
    match value {
        Json::String(text) => bytes(text).ok().map(|bytes| json!(bytes.to_string())),
        Json::Number(number) => Some(json!(number.to_string())),
        _ => None,
    }
}

fn number(value: &Json) -> Option<Json> {
    value.as_str().and_then(|text| text.parse::<f64>().ok()).map(|number| json!(number))
}

fn time(value: &Json) -> Option<Json> {
    value.as_str().and_then(|text| duration(text).ok()).map(|duration| json!(written(duration)))
}

/// A duration in hours, minutes and seconds: `1h0m5s`, `1.5s`, `500ms`.
fn written(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    // Below a second, in the largest unit that is not above it.
    for (unit, in_nanos, above) in [("ns", 1, 1_000), ("µs", 1_000, 1_000_000), ("ms", 1_000_000, 1_000_000_000)] {
        if nanos < above && nanos > 0 {
            return format!("{}{unit}", decimal(nanos, in_nanos));
        }
    }
    let (minutes, rest) = (nanos / 60_000_000_000, nanos % 60_000_000_000);
    let seconds = decimal(rest, 1_000_000_000);
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

fn decimal(value: u128, unit: u128) -> String {
    let width = unit.ilog10() as usize;
    let fraction = format!("{:0width$}", value % unit);
    match fraction.trim_end_matches('0') {
        "" => (value / unit).to_string(),
        fraction => format!("{}.{fraction}", value / unit),
    }
}

/// `SOURCE[:TARGET[:PERMISSIONS]]`.
fn device(value: &Json) -> Option<Json> {
    let mut parts = value.as_str()?.split(':');
    let source = parts.next()?;
    let target = parts.next().unwrap_or(source);
    Some(json!({ "source": source, "target": target, "permissions": parts.next().unwrap_or("rwm") }))
}

/// `NAME:ADDRESS` in its older form.
fn host(value: &Json) -> Option<Json> {
    let text = value.as_str().filter(|text| !text.contains('='))?;
    text.split_once(':').map(|(name, address)| json!(format!("{name}={address}")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::written;

    #[test]
    fn durations_are_written_in_the_largest_units() {
        let cases = [
            (0.0, "0s"),
            (0.0005, "500µs"),
            (0.5, "500ms"),
            (1.5, "1.5s"),
            (90.0, "1m30s"),
            (60.0, "1m0s"),
            (3605.25, "1h0m5.25s"),
        ];
        for (seconds, text) in cases {
            assert_eq!(written(Duration::from_secs_f64(seconds)), text);
        }
    }
}
