//! Bytes that are nearly always text: paths, arguments, environment values.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A path inside a sandbox, an argument or an environment value: any bytes, mostly UTF-8.
///
/// In JSON it is a plain string when the bytes are UTF-8 and `{"hex": "…"}` otherwise, so nothing is ever changed on
/// the way. It holds what commands are made of, so `Debug` shows its length only; `Display` shows the text, lossily,
/// and is for paths in errors.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteString(Vec<u8>);

impl ByteString {
    /// Takes the bytes as they are.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, by value.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// The text, if the bytes are UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The text, with a replacement character for each byte sequence that is not UTF-8.
    pub fn to_text_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// True if there is no byte.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The bytes as a path of this host.
    #[cfg(unix)]
    pub fn as_path(&self) -> &std::path::Path {
        use std::os::unix::ffi::OsStrExt;
        std::path::Path::new(std::ffi::OsStr::from_bytes(&self.0))
    }
}

impl fmt::Debug for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes>", self.0.len())
    }
}

impl fmt::Display for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text_lossy())
    }
}

macro_rules! from_text {
    ($($source:ty => |$value:ident| $bytes:expr),* $(,)?) => {
        $(impl From<$source> for ByteString {
            fn from($value: $source) -> Self {
                Self($bytes)
            }
        })*
    };
}

from_text! {
    &str => |value| value.as_bytes().to_vec(),
    String => |value| value.into_bytes(),
    &String => |value| value.as_bytes().to_vec(),
    &[u8] => |value| value.to_vec(),
    Vec<u8> => |value| value,
    Cow<'_, str> => |value| value.into_owned().into_bytes(),
}

#[cfg(unix)]
mod unix {
    use std::{
        ffi::{OsStr, OsString},
        os::unix::ffi::{OsStrExt, OsStringExt},
        path::{Path, PathBuf},
    };

    use super::ByteString;

    from_text! {
        &Path => |value| value.as_os_str().as_bytes().to_vec(),
        PathBuf => |value| value.into_os_string().into_vec(),
        &PathBuf => |value| value.as_os_str().as_bytes().to_vec(),
        &OsStr => |value| value.as_bytes().to_vec(),
        OsString => |value| value.into_vec(),
    }
}

impl PartialEq<str> for ByteString {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for ByteString {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hex<'a> {
    hex: Cow<'a, str>,
}

impl Serialize for ByteString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.as_str() {
            Some(text) => serializer.serialize_str(text),
            None => {
                let hex = self.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
                Hex { hex: Cow::Owned(hex) }.serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for ByteString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = ByteString;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or {\"hex\": \"…\"}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteString, E> {
                Ok(text.into())
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<ByteString, E> {
                Ok(text.into())
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<ByteString, A::Error> {
                let Hex { hex } = Hex::deserialize(de::value::MapAccessDeserializer::new(map))?;
                decode_hex(&hex).map(ByteString).ok_or_else(|| de::Error::custom("not a hexadecimal string"))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let value = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
    digits.chunks_exact(2).map(|pair| Some(value(pair[0])? << 4 | value(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use super::ByteString;

    #[test]
    fn text_is_a_plain_json_string_and_other_bytes_survive() {
        for bytes in [&b"plain"[..], b"", "日本 é\n".as_bytes(), b"a\xffb", b"\x00\x80"] {
            let value = ByteString::new(bytes);
            let json = serde_json::to_string(&value).unwrap();
            assert_eq!(serde_json::from_str::<ByteString>(&json).unwrap(), value, "{json}");
        }
        assert_eq!(serde_json::to_string(&ByteString::from("x")).unwrap(), "\"x\"");
        assert!(serde_json::from_str::<ByteString>("{\"hex\":\"0g\"}").is_err());
        assert!(serde_json::from_str::<ByteString>("{\"hex\":\"0\"}").is_err());
        assert!(serde_json::from_str::<ByteString>("17").is_err());
    }

    #[test]
    fn debug_never_shows_the_contents() {
        assert_eq!(format!("{:?}", ByteString::from("canary")), "<6 bytes>");
    }
}
