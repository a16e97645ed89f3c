//! Making, reading and naming entries of folders: as on the way to the agent.

pub(crate) use sandbox_agent_client::{
    FileOwner, MAX_ENTRIES, entry_kind, entry_stat, folder_names, give_entry, host_folder, make_folder, open_folder,
    random_hex, too_many_entries,
};
