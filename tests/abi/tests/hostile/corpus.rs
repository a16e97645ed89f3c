//! The list of all cases.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use plugin_host::{Checksum, inspect};
use sandbox_abi_tests::build::Fixture;

use crate::{compiled, elf, special};

/// What is done with a file.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// Inspect and load it, and make a provider.
    Load,
    /// The same, with the checksum of the sound file as a pin.
    LoadPinned(String),
    /// Inspect it only.
    Inspect,
}

/// What must come of it. That the child survives is always asked for.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    /// Nothing more.
    Survived,
    /// It is a provider.
    Accepted,
    /// A typed refusal before dlopen.
    RefusedUnrun,
    /// A typed refusal at this step, with this text in its message.
    Refused { at: &'static str, saying: String },
}

impl Verdict {
    pub(crate) fn refused(at: &'static str, saying: impl Into<String>) -> Self {
        Self::Refused { at, saying: saying.into() }
    }
}

/// Makes the file in a folder of its own, and gives its path.
pub(crate) type Make = Box<dyn Fn(&Path) -> PathBuf + Send + Sync>;

/// One file.
pub(crate) struct Case {
    pub(crate) number: usize,
    pub(crate) family: &'static str,
    pub(crate) name: String,
    pub(crate) make: Make,
    pub(crate) action: Action,
    pub(crate) verdict: Verdict,
}

/// A sound plugin, from which most of the others are made, and the list that grows.
pub(crate) struct Corpus {
    pub(crate) sound: &'static [u8],
    sha256: String,
    cases: Vec<Case>,
}

impl Corpus {
    pub(crate) fn new(folder: &Path) -> Self {
        // Without its symbols it is a fraction of the size; there are hundreds of copies.
        let file = folder.join("sound.so");
        let mut strip = Command::new("strip");
        let status = strip.arg("-s").arg("-o").arg(&file).arg(Fixture::Second.path()).status();
        assert!(status.expect("binutils are installed").success());
        let sha256 = inspect(&file, &Checksum::Compute).outcome.expect("it is sound").sha256.expect("it was asked for");
        let sound = fs::read(&file).expect("it was written just now").leak();
        Self { sound, sha256, cases: Vec::new() }
    }

    pub(crate) fn cases(mut self) -> Vec<Case> {
        self.bytes("sound", "as it is", self.sound.to_vec(), Action::Load, Verdict::Accepted);
        let pin = Action::LoadPinned(self.sha256.clone());
        self.bytes("sound", "pinned", self.sound.to_vec(), pin, Verdict::Accepted);
        self.truncated();
        self.flipped();
        elf::add(&mut self);
        special::add(&mut self);
        compiled::add(&mut self);
        self.cases
    }

    pub(crate) fn add(&mut self, family: &'static str, name: impl Into<String>, make: Make, verdict: Verdict) {
        self.add_with(family, name.into(), make, Action::Load, verdict);
    }

    fn add_with(&mut self, family: &'static str, name: String, make: Make, action: Action, verdict: Verdict) {
        let number = self.cases.len();
        self.cases.push(Case { number, family, name, make, action, verdict });
    }

    pub(crate) fn bytes(
        &mut self,
        family: &'static str,
        name: impl Into<String>,
        bytes: Vec<u8>,
        action: Action,
        verdict: Verdict,
    ) {
        let make: Make = Box::new(move |folder| write(folder, &bytes));
        self.add_with(family, name.into(), make, action, verdict);
    }

    fn truncated(&mut self) {
        let all = self.sound.len();
        let near_the_start = [1, 3, 4, 15, 16, 17, 51, 52, 63, 64, 65, 120, 511, 4_095, 4_096, 4_097];
        let parts = (1..=40).map(|part| all / 41 * part);
        let near_the_end = [1, 2, 8, 63, 64, 65, 512, 1_000, 4_096, 8_192].map(|missing| all - missing);
        for length in near_the_start.into_iter().chain(parts).chain(near_the_end) {
            let sound = self.sound;
            let make: Make = Box::new(move |folder| write(folder, &sound[..length]));
            self.add("truncated", format!("to {length} of {all} bytes"), make, Verdict::RefusedUnrun);
        }
    }

    fn flipped(&mut self) {
        let pin = Action::LoadPinned(self.sha256.clone());
        for (place, position, bit) in elf::flips(self.sound) {
            let sound = self.sound;
            let make = move |folder: &Path| {
                let mut bytes = sound.to_vec();
                bytes[position] ^= 1 << bit;
                write(folder, &bytes)
            };
            let name = format!("bit {bit} of byte {position} in the {place}");
            self.add_with("flipped, pinned", name.clone(), Box::new(make), pin.clone(), Verdict::RefusedUnrun);
            self.add_with("flipped, inspected", name, Box::new(make), Action::Inspect, Verdict::Survived);
        }
    }
}

/// Writes a file that is as safe to load as its folder is.
pub(crate) fn write(folder: &Path, bytes: &[u8]) -> PathBuf {
    let path = folder.join("libcase.so");
    fs::write(&path, bytes).expect("the folder can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    path
}
