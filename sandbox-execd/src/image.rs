//! The archive of an image with this program in it, for `opensandbox-server`: `/execd`, and `/bootstrap.sh`, which is a link
//! to the same file and knows by its name what it is. The server puts both into each sandbox, side by side.

use std::{
    fs::File,
    io::{self, Write},
};

use tar::{Builder, EntryType, Header};

fn header(kind: EntryType) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header
}

/// Writes it to standard output.
pub(crate) fn write() -> io::Result<()> {
    let program = File::open("/proc/self/exe")?;
    let mut archive = Builder::new(io::stdout().lock());
    let mut regular = header(EntryType::Regular);
    regular.set_size(program.metadata()?.len());
    archive.append_data(&mut regular, "execd", program)?;
    archive.append_link(&mut header(EntryType::Symlink), "bootstrap.sh", "execd")?;
    archive.into_inner()?.flush()
}
