//! The little that is read of XML answers: the text of elements by name. Attributes, comments and CDATA do not occur there.

/// What is inside the first element of this name, elements in it included.
pub(crate) fn inside<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let open = format!("<{name}>");
    let start = xml.find(&open)? + open.len();
    let end = xml[start..].find(&format!("</{name}>"))?;
    Some(&xml[start..start + end])
}

/// The text of the first element of this name that has no elements in it.
pub(crate) fn text<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    inside(xml, name).filter(|text| !text.contains('<')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::{inside, text};

    #[test]
    fn the_text_of_an_element_is_found_and_what_is_broken_is_none() {
        let xml = "<a><b>1</b><c><b> 2 </b></c></a>";
        assert_eq!(text(xml, "b"), Some("1"));
        assert_eq!(inside(xml, "c").and_then(|part| text(part, "b")), Some("2"));
        assert_eq!((text(xml, "a"), text(xml, "d"), text("<b>1", "b"), text("", "b")), (None, None, None, None));
    }

    #[test]
    fn no_text_of_a_stranger_makes_it_panic() {
        for broken in ["<", "<b", "</b><b>", "<b></", "<b>é</b", "<b><b></b>", "\u{0}<b>\u{0}</b>"] {
            let _ = (text(broken, "b"), inside(broken, "b"), text(broken, ""));
        }
    }
}
