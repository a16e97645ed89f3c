//! A folder of this machine as what images are built from: an archive, packed while it is sent.

mod ignore;

use std::{
    fs::{self, File, Metadata},
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Read, Write},
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

use bytes::Bytes;
use sandbox_core::{BuildRequest, Result, SandboxError};
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;

use self::ignore::Ignored;

/// The file of patterns, when the build file has none of its own.
const IGNORE_FILE: &str = ".dockerignore";

/// The largest build file and the largest file of patterns, in bytes.
const TEXT_MAX_BYTES: u64 = 4 << 20;

/// How large a piece of the archive is.
const CHUNK_BYTES: usize = 256 << 10;

/// What a build is made from, checked before anybody is asked. Files that its `.dockerignore` names are not part of it.
pub struct BuildContext {
    folder: PathBuf,
    ignored: Ignored,
    /// The build file's name in the archive.
    pub dockerfile: String,
    /// What it says.
    pub text: String,
    /// Files that are in the archive and not in the folder, over those that are.
    extra: Vec<(String, Vec<u8>)>,
    /// What every file is said to have been changed at; none: what is true.
    changed_at: Option<u64>,
}

impl BuildContext {
    /// Looks at everything that the archive begins with.
    ///
    /// # Errors
    /// `InvalidInput` or what reading failed with, naming the field and the path.
    pub fn open(request: &BuildRequest) -> Result<Self> {
        let invalid = |field: &str, why: String| SandboxError::invalid_input(field, why);
        let folder = PathBuf::from(&request.context);
        if !folder.is_absolute() {
            return Err(invalid("context", "must be an absolute path of a folder of this machine".to_owned()));
        }
        let found = fs::metadata(&folder).map_err(|error| failed("context", &folder, error))?;
        if !found.is_dir() {
            return Err(invalid("context", format!("{} is not a folder", folder.display())));
        }
        let own = match (&request.dockerfile, &request.dockerfile_inline) {
            (Some(_), Some(_)) => {
                return Err(invalid("dockerfile", "is given as a file and as a text: only one can hold".to_owned()));
            }
            (_, Some(text)) => return Self::with_text(folder, text.clone(), None),
            (name, None) => folder.join(name.as_deref().unwrap_or("Dockerfile")),
        };
        let text = read_text("dockerfile", &own)?;
        let ignore_file = PathBuf::from(format!("{}{IGNORE_FILE}", own.display()));
        let ignore_file = Some(ignore_file).filter(|file| file.is_file());
        match inside(&folder, &own) {
            Some(dockerfile) => {
                let (ignored, _) = Self::ignored(&folder, ignore_file.as_deref())?;
                Ok(Self { folder, ignored, dockerfile, text, extra: Vec::new(), changed_at: None })
            }
            // The engine sees nothing outside of the archive.
            None => Self::with_text(folder, text, ignore_file.as_deref()),
        }
    }

    /// With a build file that is not in the folder, under a name that nothing has, and that nothing copies.
    fn with_text(folder: PathBuf, text: String, ignore_file: Option<&Path>) -> Result<Self> {
        // The same for the same text: the patterns, which name it, must not keep the engine from finding steps done.
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let dockerfile = format!(".dockerfile.{:016x}", hasher.finish());
        let (ignored, mut patterns) = Self::ignored(&folder, ignore_file)?;
        if !folder.join(IGNORE_FILE).exists() {
            patterns.push_str(&format!("\n{IGNORE_FILE}"));
        }
        patterns.push_str(&format!("\n{dockerfile}\n"));
        let extra =
            vec![(IGNORE_FILE.to_owned(), patterns.into_bytes()), (dockerfile.clone(), text.clone().into_bytes())];
        Ok(Self { folder, ignored, dockerfile, text, extra, changed_at: None })
    }

    fn ignored(folder: &Path, file: Option<&Path>) -> Result<(Ignored, String)> {
        let file = file.map_or_else(|| folder.join(IGNORE_FILE), Path::to_owned);
        if !file.exists() {
            return Ok(Default::default());
        }
        let text = read_text("context", &file)?;
        let ignored = Ignored::parse(&text)?;
        Ok((ignored, text))
    }

    /// Says of every file that it was changed at the same time, in seconds since the Unix epoch: the archive is the same then
    /// wherever its contents are.
    #[must_use]
    pub fn changed_at(mut self, seconds: u64) -> Self {
        self.changed_at = Some(seconds);
        self
    }

    /// Packs it on a thread that may block. What is packed comes through the channel; the packing ends when nobody takes
    /// it any more.
    ///
    /// # Errors
    /// What reading failed with, naming the path.
    pub fn pack(self, sender: mpsc::Sender<io::Result<Bytes>>) -> Result<()> {
        let mut builder = Builder::new(Outgoing { sender, buffer: Vec::with_capacity(CHUNK_BYTES) });
        let packed = self.pack_into(&mut builder).and_then(|()| {
            let done = builder.finish().and_then(|()| builder.get_mut().flush());
            done.map_err(|error| failed("context", &self.folder, error))
        });
        if let Err(error) = &packed {
            // So that the engine does not take half of it for everything.
            let broken = io::Error::other(error.message().to_owned());
            let _ = builder.get_mut().sender.blocking_send(Err(broken));
        }
        packed
    }

    fn pack_into(&self, builder: &mut Builder<Outgoing>) -> Result<()> {
        for (name, contents) in &self.extra {
            let mut header = header(EntryType::Regular, 0o644, self.changed_at.unwrap_or(0), contents.len() as u64);
            let added = builder.append_data(&mut header, name, contents.as_slice());
            added.map_err(|error| failed("context", Path::new(name), error))?;
        }
        // Folders that are still to be read, below the context.
        let mut waiting = vec![PathBuf::new()];
        while let Some(folder) = waiting.pop() {
            let here = self.folder.join(&folder);
            let entries = fs::read_dir(&here).and_then(Iterator::collect::<io::Result<Vec<_>>>);
            let mut entries = entries.map_err(|error| failed("context", &here, error))?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let (path, name) = (entry.path(), folder.join(entry.file_name()));
                let found = match fs::symlink_metadata(&path) {
                    // It went away meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    found => found.map_err(|error| failed("context", &path, error))?,
                };
                let is_sent = self.is_sent(&name);
                if is_sent {
                    self.append(builder, &path, &name, &found)?;
                }
                // A build file may lie deep in what is ignored.
                if found.is_dir() && (is_sent || self.ignored.has_exceptions() || is_above(&name, &self.dockerfile)) {
                    waiting.push(name);
                }
            }
        }
        Ok(())
    }

    /// The build file and the patterns are always sent: the engine itself takes them away before something is copied.
    fn is_sent(&self, name: &Path) -> bool {
        let text = name.to_string_lossy();
        if self.extra.iter().any(|(extra, _)| *extra == text) {
            return false;
        }
        text == self.dockerfile || text == IGNORE_FILE || !self.ignored.has(&text)
    }

    fn append(&self, builder: &mut Builder<Outgoing>, path: &Path, name: &Path, found: &Metadata) -> Result<()> {
        let kind = found.file_type();
        let mode = found.mode() & 0o7777;
        let mtime = self.changed_at.unwrap_or_else(|| u64::try_from(found.mtime()).unwrap_or(0));
        let added = if kind.is_dir() {
            let mut header = header(EntryType::Directory, mode, mtime, 0);
            builder.append_data(&mut header, name, io::empty())
        } else if kind.is_symlink() {
            let mut header = header(EntryType::Symlink, mode, mtime, 0);
            fs::read_link(path).and_then(|target| builder.append_link(&mut header, name, target))
        } else if kind.is_file() {
            let mut header = header(EntryType::Regular, mode, mtime, found.len());
            let contents = File::open(path).map(|file| Exactly { inner: file.take(found.len()), left: found.len() });
            contents.and_then(|contents| builder.append_data(&mut header, name, contents))
        } else {
            // Sockets, pipes and devices are part of no image.
            Ok(())
        };
        added.map_err(|error| failed("context", path, error))
    }
}

fn header(kind: EntryType, mode: u32, mtime: u64, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(mtime);
    header.set_size(size);
    header
}

/// The name of a file below a folder, if it is there without leaving it.
fn inside(folder: &Path, file: &Path) -> Option<String> {
    let mut parts = Vec::new();
    for part in file.strip_prefix(folder).ok()?.components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            Component::ParentDir => drop(parts.pop()?),
            _ => return None,
        }
    }
    Some(parts.join("/")).filter(|name| !name.is_empty())
}

fn is_above(folder: &Path, file: &str) -> bool {
    Path::new(file).starts_with(folder)
}

fn read_text(field: &str, path: &Path) -> Result<String> {
    let invalid = |why: String| SandboxError::invalid_input(field, why);
    let found = fs::metadata(path).map_err(|error| failed(field, path, error))?;
    if !found.is_file() {
        return Err(invalid(format!("{} is not a regular file", path.display())));
    }
    if found.len() > TEXT_MAX_BYTES {
        return Err(invalid(format!("{} has {} bytes; at most {TEXT_MAX_BYTES}", path.display(), found.len())));
    }
    let bytes = fs::read(path).map_err(|error| failed(field, path, error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn failed(field: &str, path: &Path, error: io::Error) -> SandboxError {
    SandboxError::io(path.display(), error).with_field(field)
}

/// As many bytes as were announced, or an error.
struct Exactly<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Exactly<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left -= count as u64;
        match count {
            0 if self.left > 0 && !buffer.is_empty() => Err(io::Error::other("became shorter while it was read")),
            count => Ok(count),
        }
    }
}

/// The archive on its way to the engine.
struct Outgoing {
    sender: mpsc::Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
}

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let chunk = Bytes::from(std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK_BYTES)));
        self.sender.blocking_send(Ok(chunk)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        fs,
        io::Read,
        os::unix::{
            fs::{PermissionsExt, symlink},
            net::UnixListener,
        },
        path::Path,
    };

    use sandbox_core::{BuildRequest, ErrorKind};
    use tokio::sync::mpsc;

    use super::BuildContext;

    fn request(folder: &Path) -> BuildRequest {
        BuildRequest { context: folder.display().to_string(), ..BuildRequest::default() }
    }

    fn put(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// The entries of the archive, by name: what they are and hold.
    fn packed(request: &BuildRequest) -> (String, BTreeMap<String, String>) {
        let context = BuildContext::open(request).unwrap();
        let dockerfile = context.dockerfile.clone();
        let (sender, mut receiver) = mpsc::channel(4);
        let packing = std::thread::spawn(move || context.pack(sender));
        let mut bytes = Vec::new();
        while let Some(chunk) = receiver.blocking_recv() {
            bytes.extend_from_slice(&chunk.unwrap());
        }
        packing.join().unwrap().unwrap();
        let mut entries = BTreeMap::new();
        for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut told = format!("{:o} ", entry.header().mode().unwrap());
            if let Some(target) = entry.link_name().unwrap() {
                told = format!("-> {}", target.display());
            }
            entry.read_to_string(&mut told).unwrap();
            assert!(entries.insert(name, told).is_none(), "twice in the archive");
        }
        (dockerfile, entries)
    }

    #[test]
    fn a_folder_is_packed_without_what_is_ignored_but_with_the_build_file() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path();
        put(folder, "ops/Dockerfile", "FROM scratch");
        put(folder, "ops/other", "x");
        put(folder, "src/main", "main");
        put(folder, "src/skipped.log", "x");
        put(folder, "src/kept.log", "kept");
        put(folder, ".dockerignore", "ops\n**/*.log\n!src/kept.log\n.dockerignore\n");
        let long = "l".repeat(120);
        put(folder, &format!("{long}/{long}"), "long");
        symlink("../outside", folder.join("link")).unwrap();
        fs::set_permissions(folder.join("src/main"), fs::Permissions::from_mode(0o751)).unwrap();
        let _socket = UnixListener::bind(folder.join("socket")).unwrap();
        let mut request = request(folder);
        request.dockerfile = Some("./ops/../ops/Dockerfile".to_owned());
        let (dockerfile, entries) = packed(&request);
        assert_eq!(dockerfile, "ops/Dockerfile");
        let names: Vec<&str> = entries.keys().map(String::as_str).collect();
        let deep = format!("{long}/{long}");
        assert_eq!(
            names,
            [".dockerignore", "link", &long, &deep, "ops/Dockerfile", "src", "src/kept.log", "src/main"],
            "{entries:?}"
        );
        assert_eq!((entries["src/main"].as_str(), entries["link"].as_str()), ("751 main", "-> ../outside"));
    }

    #[test]
    fn a_build_file_from_elsewhere_goes_along_and_nothing_copies_it() {
        let (temp, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        put(temp.path(), "file", "x");
        put(other.path(), "D", "FROM outside");
        let mut request = request(temp.path());
        for outside in [true, false] {
            if outside {
                request.dockerfile = Some(other.path().join("D").display().to_string());
            } else {
                (request.dockerfile, request.dockerfile_inline) = (None, Some("FROM outside".to_owned()));
            }
            let (dockerfile, entries) = packed(&request);
            assert_eq!(entries[&dockerfile], "644 FROM outside");
            assert_eq!(entries[".dockerignore"], format!("644 \n.dockerignore\n{dockerfile}\n"));
            put(temp.path(), ".dockerignore", "file");
            let (dockerfile, entries) = packed(&request);
            assert_eq!(entries[".dockerignore"], format!("644 file\n{dockerfile}\n"));
            assert_eq!(entries.len(), 2, "{entries:?}");
            fs::remove_file(temp.path().join(".dockerignore")).unwrap();
        }
    }

    #[test]
    fn the_archive_of_the_same_contents_is_the_same_wherever_and_whenever_they_are() {
        let bytes = |folder: &Path| {
            let context = BuildContext::open(&request(folder)).unwrap().changed_at(1);
            let (sender, mut receiver) = mpsc::channel(4);
            let packing = std::thread::spawn(move || context.pack(sender));
            let mut bytes = Vec::new();
            while let Some(chunk) = receiver.blocking_recv() {
                bytes.extend_from_slice(&chunk.unwrap());
            }
            packing.join().unwrap().unwrap();
            bytes
        };
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for folder in [one.path(), two.path()] {
            put(folder, "Dockerfile", "FROM scratch");
            put(folder, "a/b", "x");
        }
        let old = fs::File::options().write(true).open(two.path().join("a/b")).unwrap();
        old.set_modified(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(bytes(one.path()), bytes(two.path()));
        put(two.path(), "a/b", "y");
        assert_ne!(bytes(one.path()), bytes(two.path()));
    }

    #[test]
    fn a_build_file_has_patterns_of_its_own() {
        let temp = tempfile::tempdir().unwrap();
        put(temp.path(), "Dockerfile", "FROM scratch");
        put(temp.path(), ".dockerignore", "a");
        put(temp.path(), "Dockerfile.dockerignore", "b");
        put(temp.path(), "a", "");
        put(temp.path(), "b", "");
        let (_, entries) = packed(&request(temp.path()));
        assert!(entries.contains_key("a") && !entries.contains_key("b"), "{entries:?}");
    }

    #[test]
    fn what_is_not_there_is_named_with_its_field() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path();
        put(folder, "file", "");
        let with = |change: fn(&mut BuildRequest)| {
            let mut request = request(folder);
            change(&mut request);
            request
        };
        for (request, kind, field) in [
            (with(|_| {}), ErrorKind::NotFound, "dockerfile"),
            (with(|request| request.dockerfile = Some("no".to_owned())), ErrorKind::NotFound, "dockerfile"),
            (with(|request| request.dockerfile = Some(".".to_owned())), ErrorKind::InvalidInput, "dockerfile"),
            (with(|request| request.context = "rel".to_owned()), ErrorKind::InvalidInput, "context"),
            (with(|request| request.context.push_str("/file")), ErrorKind::InvalidInput, "context"),
            (with(|request| request.context.push_str("/none")), ErrorKind::NotFound, "context"),
            (
                with(|request| {
                    request.dockerfile = Some("file".to_owned());
                    request.dockerfile_inline = Some(String::new());
                }),
                ErrorKind::InvalidInput,
                "dockerfile",
            ),
        ] {
            let error = BuildContext::open(&request).err().unwrap();
            assert_eq!((error.kind(), error.field()), (kind, Some(field)), "{error:?}");
        }
    }
}
