//! A panic is one line on standard error, not a page.

/// Replaces the default report of panics.
pub(crate) fn install() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(|location| format!(" at {}:{}", location.file(), location.line()));
        let text = panic.payload_as_str().unwrap_or("no message").replace('\n', " ");
        crate::output::note(&format!("error: internal error{}: {text} (internal)", place.unwrap_or_default()));
    }));
}
