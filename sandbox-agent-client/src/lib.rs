//! The provider's side of the agent: contract calls over its protocol, and files of this host on their way in and out.
//!
//! Everything that a provider with our agent does the same way whatever its backend: [`AgentFiles`], terminals, ports,
//! the expiry; finding the agent's file; whose process owns a sandbox; what images are built from. What comes out of a sandbox is hostile: ways
//! lead down only, links that lead out and special files are refused, and a file appears in one step when it is whole.
//! A provider that copies such files without the agent uses the same parts ([`Arrival`], [`NewFile`]).

#![forbid(unsafe_code)]

mod agent_file;
mod arrival;
mod build_context;
mod calls;
mod error;
mod exec;
mod files;
mod folder;
mod folders;
mod forward;
mod host_file;
mod jobs;
mod new_file;
mod owner;
mod pack;
mod passed;
mod unpack;

pub use agent_file::find_agent;
pub use arrival::{Arrival, folder_below, join_way};
pub use build_context::BuildContext;
pub use calls::{TTL_MAX_S, attach_pty, create_pty, metrics, open_port, renew};
pub use exec::{AgentWay, exec, is_broken};
pub use files::{AgentFiles, READ_MAX_BYTES};
pub use folder::{
    FileOwner, MAX_ENTRIES, entry_kind, entry_stat, folder_names, give_entry, host_folder, make_folder, open_folder,
    random_hex, too_many_entries,
};
pub use folders::{receive_folder, send_folder};
pub use forward::{ForwardTarget, forward_ports};
pub use host_file::{Source, begin_host_file, feed, kept_traits, open_host_file, open_source, receive_file};
pub use jobs::AgentJobs;
pub use new_file::{FileTraits, NewFile, regular_mode};
pub use owner::{Life, boot_id, host_name, life, process, start_time, this_process};
