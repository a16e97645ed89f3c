//! What is on the shelves, filling them in the background, and clearing them.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sandbox_core::tracing;

use super::member::{Member, Recipe};
use crate::{
    config::PullPolicy,
    image::{Image, Wish},
    provider::Shared,
};

/// Kinds of members that are kept at once; the one that was asked for longest ago goes first.
const SHELVES_MAX: usize = 8;

/// The sandbox that took a member runs its first command before the next one is made.
const FILL_AFTER: Duration = Duration::from_millis(20);

/// How long clearing waits for a member that is being made.
const CLEAR_LIMIT: Duration = Duration::from_secs(60);

/// Images that are known at once.
const IMAGES_MAX: usize = 64;

/// The pools of a provider.
#[derive(Default)]
pub(crate) struct Pools {
    /// The one that was used last stands last.
    shelves: Mutex<VecDeque<Shelf>>,
    images: Mutex<HashMap<String, Image>>,
    is_closed: AtomicBool,
    /// Members are made one at a time: a sandbox that somebody waits for goes first.
    turn: tokio::sync::Mutex<()>,
}

struct Shelf {
    key: String,
    members: Vec<Member>,
    is_filled: bool,
}

impl Pools {
    fn shelves(&self) -> MutexGuard<'_, VecDeque<Shelf>> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an image was that sandboxes were made of. It may be another one by now.
    pub(crate) fn known_image(&self, wish: &Wish<'_>) -> Option<Image> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner).get(&image_key(wish)?).cloned()
    }

    /// Takes note of it.
    pub(crate) fn learn_image(&self, wish: &Wish<'_>, image: &Image) {
        let Some(key) = image_key(wish).filter(|_| !self.shelves().is_empty()) else { return };
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        if images.len() >= IMAGES_MAX {
            images.clear();
        }
        images.insert(key, image.clone());
    }

    /// A member of this kind. It is the caller's, and never comes back.
    pub(super) fn take(&self, key: &str) -> Option<Member> {
        self.shelves().iter_mut().find(|shelf| shelf.key == key)?.members.pop()
    }

    /// Makes members of this kind in the background until there are enough.
    pub(super) fn refill(shared: &Arc<Shared>, recipe: Recipe) {
        let evicted = {
            let mut shelves = shared.pools.shelves();
            let at = shelves.iter().position(|shelf| shelf.key == recipe.key);
            let mut shelf = at.and_then(|at| shelves.remove(at)).unwrap_or_else(|| Shelf {
                key: recipe.key.clone(),
                members: Vec::new(),
                is_filled: false,
            });
            let is_busy = std::mem::replace(&mut shelf.is_filled, true);
            shelves.push_back(shelf);
            if is_busy {
                return;
            }
            if shelves.len() > SHELVES_MAX { shelves.pop_front() } else { None }
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            tokio::time::sleep(FILL_AFTER).await;
            remove(&shared, evicted.map(|shelf| shelf.members).unwrap_or_default()).await;
            fill(&shared, &recipe).await;
        });
    }

    /// Removes every member that serves no sandbox; no more are made.
    pub(crate) async fn close(shared: &Shared) {
        shared.pools.is_closed.store(true, Ordering::Release);
        // One that is being made is removed by its maker, who sees that it is over.
        let turn = tokio::time::timeout(CLEAR_LIMIT, shared.pools.turn.lock()).await;
        let members = shared.pools.shelves().drain(..).flat_map(|shelf| shelf.members).collect();
        remove(shared, members).await;
        drop(turn);
    }
}

/// None where an image must be pulled each time.
fn image_key(wish: &Wish<'_>) -> Option<String> {
    (wish.pull != PullPolicy::Always).then(|| format!("{} {}", wish.platform.unwrap_or_default(), wish.reference))
}

async fn remove(shared: &Shared, members: Vec<Member>) {
    for member in members {
        if let Err(error) = member.remove(&shared.engine).await {
            // Found by its labels when this process is gone.
            tracing::warn!(kind = %error.kind(), "a container of the pool could not be removed");
        }
    }
}

async fn fill(shared: &Shared, recipe: &Recipe) {
    let pools = &shared.pools;
    loop {
        let _turn = pools.turn.lock().await;
        let is_wanted = {
            let mut shelves = pools.shelves();
            let Some(shelf) = shelves.iter_mut().find(|shelf| shelf.key == recipe.key) else { return };
            shelf.is_filled = shelf.members.len() < recipe.count && !pools.is_closed.load(Ordering::Acquire);
            shelf.is_filled
        };
        if !is_wanted {
            return;
        }
        let made = Member::make(shared, recipe).await;
        let left = {
            let mut shelves = pools.shelves();
            let shelf = shelves.iter_mut().find(|shelf| shelf.key == recipe.key);
            match (made, shelf) {
                (Ok(member), Some(shelf)) if !pools.is_closed.load(Ordering::Acquire) => {
                    shelf.members.push(member);
                    continue;
                }
                (Ok(member), _) => vec![member],
                (Err(error), shelf) => {
                    tracing::warn!(kind = %error.kind(), "the pool could not be filled; the next sandbox tries again");
                    shelf.into_iter().for_each(|shelf| shelf.is_filled = false);
                    Vec::new()
                }
            }
        };
        remove(shared, left).await;
        return;
    }
}
