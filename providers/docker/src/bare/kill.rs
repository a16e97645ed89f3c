//! Ending a command that the engine cannot end: from this machine, where its processes can be seen.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::bare::Target;

/// How often the tree is looked through: what it makes meanwhile is found the next time.
const ROUNDS: usize = 4;

/// Kills a command and everything below it, as far as this machine can see and may do it.
pub(crate) async fn tree(target: &Target, exec: &str) {
    let Ok(docker) = target.engine.docker().await else { return };
    let Ok(found) = docker.inspect_exec(exec).await else { return };
    let pid = found.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1);
    let (Some(pid), container) = (pid, target.container.clone()) else { return };
    if !target.engine.is_by_socket() {
        return;
    }
    // Looks through /proc, which takes a moment.
    let _ = tokio::task::spawn_blocking(move || kill(pid, &container)).await;
}

fn kill(pid: i32, container: &str) {
    for _ in 0..ROUNDS {
        let mut tree = vec![pid];
        let mut next = 0;
        while let Some(parent) = tree.get(next).copied() {
            next += 1;
            let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
            tree.extend(children.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        }
        let mut any = false;
        for pid in tree {
            let Some(number) = Pid::from_raw(pid) else { continue };
            // Compared after it was opened, so the descriptor is of a process of this container or of none.
            if let Ok(process) = pidfd_open(number, PidfdFlags::empty())
                && is_of(pid, container)
            {
                any |= pidfd_send_signal(&process, Signal::KILL).is_ok();
            }
        }
        if !any {
            return;
        }
    }
}

/// True if a process of this machine belongs to a container.
fn is_of(pid: i32, container: &str) -> bool {
    container.len() >= 32
        && std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(container))
}
