//! Roots that are made once for many sandboxes.
//!
//! A root of system folders is the same for every sandbox of a kind, but for a few mounts of its own. So a launcher with
//! privileges has a short-lived process make one (in namespaces like a sandbox's, with the same ids), and keeps its mount
//! namespace. A sandbox is forked into a copy: it neither sees a mount of the host's nor has to collect, change and drop a
//! root, and the kernel lets nobody inside take away or change a mount that was copied from a more privileged namespace.
//!
//! What the host changes about its own folders shows in sandboxes that are launched a second later.

use std::convert::Infallible;
use std::fs::{self, File, Metadata};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::thread::LinkNameSpaceType;

use super::ids::{self, Plan};
use super::inner;
use super::message::{Line, Message};
use super::outer::Inner;
use super::proc::Hidden;
use super::{etc, root};
use crate::config::{Basis, Ids, Network, SandboxUser, Target};
use crate::error::{Context, LaunchError, Stage};
use crate::sys::{self, Forked};

/// What differs beyond these makes the oldest go.
const KEPT: usize = 4;
/// How old the knowledge may be that the host's folders are what they were.
const FRESH: Duration = Duration::from_secs(1);
/// Making one takes milliseconds; a folder of the host that does not answer must not hold every launch.
const TIMEOUT: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// All that a template depends on.
#[derive(PartialEq, Eq)]
struct Kind {
    user: SandboxUser,
    ids: Ids,
    targets: Vec<Target>,
}

impl Kind {
    fn of(basis: &Basis) -> Option<Kind> {
        // The host's network has a resolver that may change at any time.
        let is_of_some = basis.is_system && basis.network == Network::None;
        is_of_some.then(|| Kind { user: basis.user.clone(), ids: basis.ids.clone(), targets: basis.targets.clone() })
    }
}

/// The mount namespace of a root, sealed.
pub(super) struct Template {
    pub(super) plan: Plan,
    pub(super) hidden: Hidden,
    namespace: File,
}

/// The templates of a launcher.
#[derive(Default)]
pub(super) struct Templates {
    /// The newest last. `None`: there cannot be one here.
    made: Vec<(Kind, Option<Template>)>,
    home: Option<Home>,
    seen: Seen,
}

/// Where this process is when it is in no template.
pub(super) struct Home {
    namespace: File,
    root: OwnedFd,
}

impl Home {
    fn find() -> Result<Home, LaunchError> {
        let path = "/proc/self/ns/mnt";
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Home {
            namespace: File::open(path).stage_at(Stage::Root, "opening", path)?,
            root: rustix::fs::open("/", flags, Mode::empty()).stage_at(Stage::Root, "opening", "/")?,
        })
    }

    pub(super) fn enter(&self) -> Result<(), LaunchError> {
        go(&self.namespace)?;
        // The root of a namespace need not be that of the processes in it.
        let entered = rustix::process::fchdir(&self.root).and_then(|()| rustix::process::chroot("."));
        entered.stage(Stage::Root, "returning to the launcher's root")
    }
}

fn go(namespace: &File) -> Result<(), LaunchError> {
    let entered = rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount));
    entered.stage(Stage::Namespaces, "entering a mount namespace")
}

impl Templates {
    /// Has one made for sandboxes with this basis, if need be. What fails is told by the sandboxes themselves, which then
    /// do without.
    pub(super) fn prepare(&mut self, basis: &Basis) {
        let Some(kind) = Kind::of(basis) else { return };
        if self.seen.has_changed(root::seen().chain(etc::SHOWN).chain(ids::ACCOUNTS)) {
            self.made.clear();
        }
        if self.made.iter().any(|(known, _)| *known == kind) {
            return;
        }
        if self.home.is_none() {
            self.home = Home::find().ok();
        }
        let template = self.home.as_ref().and_then(|_| Template::make(basis).ok());
        if self.made.len() == KEPT {
            self.made.remove(0);
        }
        self.made.push((kind, template));
    }

    /// The one for sandboxes with this basis.
    pub(super) fn get(&self, basis: &Basis) -> Option<&Template> {
        let kind = Kind::of(basis)?;
        self.made.iter().find(|(known, _)| *known == kind)?.1.as_ref()
    }

    /// Puts this process into a template: what it forks then begins in a copy. Returns the way back; `None` where it may not
    /// go there.
    pub(super) fn enter(&self, template: &Template) -> Option<&Home> {
        let home = self.home.as_ref()?;
        go(&template.namespace).ok().map(|()| home)
    }
}

impl Template {
    fn make(basis: &Basis) -> Result<Template, LaunchError> {
        let plan = Plan::new(&basis.ids)?;
        if !plan.privileged {
            // What enters a namespace needs privileges over its own.
            return Err(LaunchError::new(Stage::Ids, "no privileges for a template"));
        }
        let (ours, theirs) = Line::pair()?;
        let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID;
        let forked = sys::fork_into(namespaces, None).stage(Stage::Namespaces, "making a template's namespaces")?;
        let pid = match forked {
            Forked::Child => {
                drop(ours);
                let Err(error) = build(basis, &plan, &theirs);
                // If nobody listens any more, nobody needs to know.
                let _ = theirs.send(&Message::Failed(error));
                std::process::exit(inner::FAILED)
            }
            Forked::Parent(pid) => pid,
        };
        let process = Inner::new(pid)?;
        drop(theirs);
        plan.write(pid)?;
        ours.send_go()?;
        let mut watched = [PollFd::new(&ours, PollFlags::IN)];
        let said = rustix::io::retry_on_intr(|| rustix::event::poll(&mut watched, Some(&TIMEOUT)));
        if said.stage(Stage::Report, "waiting for a template")? == 0 {
            return Err(LaunchError::new(Stage::Root, "a folder of the host does not answer"));
        }
        match ours.receive()? {
            Some(Message::Sealed) => {}
            Some(Message::Failed(error)) => return Err(error),
            _ => return Err(LaunchError::new(Stage::Root, "a template's process has ended without a word")),
        }
        let path = format!("/proc/{}/ns/mnt", pid.as_raw_pid());
        let namespace = File::open(&path).stage_at(Stage::Root, "opening", path)?;
        // Its end leaves a /proc of no process in the template.
        drop(process);
        Ok(Template { plan, hidden: Hidden::find(), namespace })
    }
}

/// Makes the root, in the process that is there for nothing else. Ends with its launcher's word, or its end.
fn build(basis: &Basis, plan: &Plan, line: &Line) -> Result<Infallible, LaunchError> {
    inner::die_with_outer_half()?;
    sys::close_all_but([line.as_fd()]).stage(Stage::Namespaces, "closing what others have open")?;
    line.receive_go()?;
    inner::become_root()?;
    inner::die_with_outer_half()?;
    root::View::collect(basis)?.enter(basis, plan, None)?;
    root::seal(basis)?;
    line.send(&Message::Sealed)?;
    line.receive()?;
    std::process::exit(0)
}

/// What the host's folders were like.
#[derive(Default)]
struct Seen {
    at: Option<Instant>,
    files: Vec<Option<Mark>>,
    hidden: Option<Hidden>,
    /// Can be polled for changes of the host's mounts.
    mounts: Option<File>,
}

/// What changes when a file is replaced; for a file, when it is written, too.
#[derive(PartialEq, Eq)]
struct Mark {
    inode: (u64, u64),
    changed: Option<(i64, i64)>,
}

impl Mark {
    fn of(metadata: &Metadata) -> Mark {
        let changed = (!metadata.is_dir()).then(|| (metadata.ctime(), metadata.ctime_nsec()));
        Mark { inode: (metadata.dev(), metadata.ino()), changed }
    }
}

impl Seen {
    /// Looks again, unless that was just done.
    fn has_changed<'a>(&mut self, paths: impl Iterator<Item = &'a str>) -> bool {
        if self.at.is_some_and(|at| at.elapsed() < FRESH) {
            return false;
        }
        let is_first = self.at.is_none();
        let have_mounts_changed = self.have_mounts_changed();
        let files: Vec<_> = paths.map(|path| fs::symlink_metadata(path).ok().as_ref().map(Mark::of)).collect();
        // What a kernel has there depends on its modules.
        let hidden = Some(Hidden::find());
        let is_other = files != self.files || hidden != self.hidden;
        (self.at, self.files, self.hidden) = (Some(Instant::now()), files, hidden);
        !is_first && (have_mounts_changed || is_other)
    }

    fn have_mounts_changed(&mut self) -> bool {
        if self.mounts.is_none() {
            self.mounts = File::open("/proc/self/mounts").ok();
        }
        // Where that cannot be told, each look sees a change.
        let Some(mounts) = &self.mounts else { return true };
        let mut watched = [PollFd::new(mounts, PollFlags::PRI)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !rustix::event::poll(&mut watched, Some(&now)).is_ok_and(|_| watched[0].revents().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// What a look says that comes late enough.
    fn changes(seen: &mut Seen, paths: &[&Path; 3]) -> bool {
        seen.at = seen.at.and_then(|at| at.checked_sub(FRESH));
        // Other tests mount, too.
        seen.have_mounts_changed();
        seen.has_changed(paths.iter().map(|path| path.to_str().unwrap()))
    }

    #[test]
    fn what_is_replaced_or_comes_or_goes_is_a_change_and_what_is_in_a_folder_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, inner] = ["file", "link", "inner"].map(|name| folder.path().join(name));
        fs::write(&file, "one").unwrap();
        fs::create_dir(&inner).unwrap();
        let paths = [file.as_path(), link.as_path(), inner.as_path()];
        let mut seen = Seen::default();
        assert!(!changes(&mut seen, &paths), "the first look has nothing to compare with");
        fs::write(inner.join("more"), "").unwrap();
        assert!(!changes(&mut seen, &paths), "a folder is shown as it is");
        std::os::unix::fs::symlink("file", &link).unwrap();
        assert!(changes(&mut seen, &paths));
        assert!(!changes(&mut seen, &paths));
        fs::write(folder.path().join("new"), "one").unwrap();
        fs::rename(folder.path().join("new"), &file).unwrap();
        assert!(changes(&mut seen, &paths));
        fs::remove_dir_all(&inner).unwrap();
        assert!(changes(&mut seen, &paths));
        fs::write(&file, "two").unwrap();
        assert!(!seen.has_changed(paths.iter().map(|path| path.to_str().unwrap())), "it has just looked");
        assert!(changes(&mut seen, &paths), "accounts are written in place, too");
    }

    #[test]
    fn a_mount_of_the_hosts_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let mut seen = Seen::default();
        seen.have_mounts_changed();
        // Other tests mount, too, but not all the time.
        assert!((0..1000).any(|_| !seen.have_mounts_changed()));
        rustix::mount::mount(c"tmpfs", path, c"tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
        let has_changed = seen.have_mounts_changed();
        rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH).unwrap();
        assert!(has_changed);
    }
}
