use sandbox_core::{Result, from_json};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Takes images from somewhere else: a mirror, a local registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageRewrite {
    /// How the image reference starts.
    pub from: String,
    /// What stands there instead.
    pub to: String,
}

impl ImageRewrite {
    /// Reads a list of them from JSON: `[{"from": "docker.io/", "to": "mirror.local/"}]`. Null is an empty list.
    ///
    /// # Errors
    /// `InvalidInput`, naming the entry and the key that is missing or unknown.
    pub fn list_from_json(rewrites: Value) -> Result<Vec<Self>> {
        if rewrites.is_null() {
            return Ok(Vec::new());
        }
        from_json(rewrites, "image rewrites")
    }
}

/// The image with the first prefix that matches replaced, once. No image and one that nothing matches stay as they are.
pub fn rewrite_image(image: Option<&str>, rewrites: &[ImageRewrite]) -> Option<String> {
    let image = image?;
    let rewritten =
        rewrites.iter().find_map(|rewrite| Some(format!("{}{}", rewrite.to, image.strip_prefix(&rewrite.from)?)));
    Some(rewritten.unwrap_or_else(|| image.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ImageRewrite, rewrite_image};

    #[test]
    fn the_first_prefix_that_matches_is_replaced_once() {
        let rewrites = ImageRewrite::list_from_json(json!([
            {"from": "a/a/", "to": "x/"},
            {"from": "a/", "to": "a/a/"},
            {"from": "b", "to": ""},
        ]))
        .unwrap();
        let cases = [
            (None, None),
            (Some("c:1"), Some("c:1")),
            (Some("a/a/i"), Some("x/i")),
            (Some("a/i"), Some("a/a/i")),
            (Some("bb"), Some("b")),
            (Some("c/a/i"), Some("c/a/i")),
        ];
        for (image, expected) in cases {
            assert_eq!(rewrite_image(image, &rewrites).as_deref(), expected, "{image:?}");
        }
        assert_eq!(rewrite_image(Some("a/i"), &[]).as_deref(), Some("a/i"));
    }

    #[test]
    fn an_entry_without_one_of_its_keys_is_refused() {
        for bad in [json!([{"from": "a"}]), json!([{"to": "a"}]), json!([{"from": "a", "to": "b", "x": 1}]), json!({})]
        {
            assert!(ImageRewrite::list_from_json(bad.clone()).is_err(), "{bad}");
        }
        assert!(ImageRewrite::list_from_json(json!(null)).unwrap().is_empty());
    }
}
