//! What the double knows.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddrV4,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::body::Bytes;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::{
    builds::Build,
    control_plane::Account,
    definition::{Definition, FileSystem},
    double::Timing,
    fault::{Faults, Kind},
    front::Client,
    image::Images,
    journal::Journal,
    run,
    task::Task,
};

/// What RunTask was asked, and the tasks that it started.
pub(crate) type Asked = (Value, Vec<Arc<Task>>);

pub(crate) struct World {
    /// Everything on disk is below it.
    pub(crate) folder: PathBuf,
    pub(crate) images: Images,
    pub(crate) timing: Timing,
    pub(crate) account: Account,
    /// Where the services are, seen from here and from the tasks.
    pub(crate) services: SocketAddrV4,
    pub(crate) client: Client,
    /// What RunTask was asked with a token.
    pub(crate) tokens: tokio::sync::Mutex<HashMap<String, Asked>>,
    faults: Mutex<Faults>,
    journal: Mutex<Journal>,
    definitions: Mutex<HashMap<String, Definition>>,
    tasks: Mutex<Vec<Arc<Task>>>,
    lives: Mutex<JoinSet<()>>,
    builds: Mutex<HashMap<String, Build>>,
    /// Images that builds have made.
    pushed: Mutex<HashMap<String, PathBuf>>,
    /// Objects of S3 by their paths; of archives also what is in them.
    objects: Mutex<BTreeMap<String, Option<Bytes>>>,
}

impl World {
    pub(crate) fn new(
        folder: PathBuf,
        images: Images,
        timing: Timing,
        account: Account,
        services: SocketAddrV4,
        client: Client,
    ) -> Self {
        Self {
            folder,
            images,
            timing,
            account,
            services,
            client,
            tokens: tokio::sync::Mutex::default(),
            faults: Mutex::default(),
            journal: Mutex::default(),
            definitions: Mutex::default(),
            tasks: Mutex::default(),
            lives: Mutex::default(),
            builds: Mutex::default(),
            pushed: Mutex::default(),
            objects: Mutex::default(),
        }
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn definitions(&self) -> MutexGuard<'_, HashMap<String, Definition>> {
        self.definitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn builds(&self) -> MutexGuard<'_, HashMap<String, Build>> {
        self.builds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pushed(&self) -> MutexGuard<'_, HashMap<String, PathBuf>> {
        self.pushed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Option<Bytes>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The root of an image: one of the double's own, or one that a build has made.
    pub(crate) fn find_image(&self, reference: &str) -> Option<PathBuf> {
        self.images.find(reference).or_else(|| self.pushed().get(reference).cloned())
    }

    /// What goes wrong with the next task, if anything does.
    pub(crate) fn hit(&self, place: &str) -> Option<Kind> {
        self.faults().hit(place, &Value::Null)
    }

    /// Every task so far, oldest first.
    pub(crate) fn tasks(&self) -> Vec<Arc<Task>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A task by its ARN or the last part of it.
    pub(crate) fn task(&self, name: &str) -> Option<Arc<Task>> {
        self.tasks().into_iter().find(|task| task.arn == name || task.id() == name)
    }

    /// Lets a task live.
    pub(crate) fn begin(self: &Arc<Self>, task: Arc<Task>) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task.clone());
        let mut lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        lives.spawn(run::run(self.clone(), task));
    }

    /// The lives of all tasks, taken out: dropped, they end at once.
    pub(crate) fn take_lives(&self) -> JoinSet<()> {
        std::mem::take(&mut self.lives.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where a shared file system is: the same folder for every task.
    pub(crate) fn shared_folder(&self, system: &FileSystem) -> PathBuf {
        let access_point = system.authorization_config["accessPointId"].as_str().unwrap_or_default();
        let name = format!("{}{access_point}", system.file_system_id);
        self.folder.join("shared").join(name).join(system.root_directory.trim_matches('/'))
    }
}
