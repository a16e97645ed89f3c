use serde_json::Value;

/// `KEY=VALUE`.
///
/// # Errors
/// Without `=`, or with nothing before it.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// `KEY=VALUE` where the value is JSON if it reads as such, else text.
///
/// # Errors
/// As [`pair`].
pub(crate) fn option_value(text: &str) -> Result<(String, Value), String> {
    let (key, value) = pair(text)?;
    let value = serde_json::from_str(&value).unwrap_or(Value::String(value));
    Ok((key, value))
}
