//! Whom commands run as and files belong to.

use std::sync::OnceLock;

use rustix::process::{getegid, geteuid};
use sandbox_process::{User, UserError};

use crate::folder::FileOwner;

/// A user of this machine, as a command sees it.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The name, or the number where there is none.
    pub(crate) name: Vec<u8>,
    /// Home from the passwd file. None for this process's own user, whose home is the workspace.
    pub(crate) home: Option<Vec<u8>>,
    /// Whom to switch to. None for this process's own user: nothing has to change, so nothing can be refused.
    pub(crate) switch: Option<User>,
}

/// Whether this process may switch users and give files away.
pub(crate) fn is_privileged() -> bool {
    geteuid().is_root()
}

fn read(file: &str) -> Vec<u8> {
    // A machine without the file has no names.
    std::fs::read(file).unwrap_or_default()
}

impl Identity {
    /// The user of this process.
    pub(crate) fn own() -> Self {
        static NAME: OnceLock<Vec<u8>> = OnceLock::new();
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let name = NAME.get_or_init(|| {
            let user = User::resolve(uid.to_string().as_bytes(), &read("/etc/passwd"), b"");
            user.ok().and_then(|user| user.name).unwrap_or_else(|| uid.to_string().into_bytes())
        });
        Self { uid, gid, name: name.clone(), home: None, switch: None }
    }

    /// A user by `NAME`, `UID`, `UID:GID` or `NAME:GROUP`, from this machine's passwd and group files.
    pub(crate) fn resolve(user: &str) -> Result<Self, UserError> {
        let user = User::resolve(user.as_bytes(), &read("/etc/passwd"), &read("/etc/group"))?;
        let own = Self::own();
        if (user.uid, user.gid) == (own.uid, own.gid) {
            return Ok(own);
        }
        Ok(Self {
            uid: user.uid,
            gid: user.gid,
            name: user.name.clone().unwrap_or_else(|| user.uid.to_string().into_bytes()),
            home: Some(user.home.clone()),
            switch: Some(user),
        })
    }

    /// To whom its files are given. None when they are its own by themselves, or cannot be given away.
    pub(crate) fn file_owner(&self) -> Option<FileOwner> {
        (self.switch.is_some() && is_privileged()).then_some(FileOwner { uid: self.uid, gid: self.gid })
    }
}

#[cfg(test)]
mod tests {
    use super::Identity;

    #[test]
    fn the_own_user_by_number_needs_no_switch_and_an_unknown_name_is_nobody() {
        let own = Identity::own();
        let again = Identity::resolve(&format!("{}:{}", own.uid, own.gid)).unwrap();
        assert!(again.switch.is_none());
        assert!(Identity::resolve("no-such-user-here").is_err());
        let other = Identity::resolve("54321").unwrap();
        assert_eq!((other.uid, other.gid, other.home.as_deref()), (54321, 54321, Some(&b"/"[..])));
        assert!(other.switch.is_some());
    }
}
