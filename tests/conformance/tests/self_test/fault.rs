//! The ways in which the fake provider can be wrong, and the cases that are meant to see each.

macro_rules! faults {
    ($($variant:ident => $($case:literal),+;)*) => {
        /// One way to break the contract.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Fault {
            $($variant,)*
        }

        impl Fault {
            pub(crate) const ALL: &[Fault] = &[$(Fault::$variant),*];

            /// The cases that must fail, each by itself.
            pub(crate) fn caught_by(self) -> &'static [&'static str] {
                match self { $(Self::$variant => &[$($case),+]),* }
            }
        }
    };
}

faults! {
    ExitCodeAlwaysZero => "exec.exit_codes_are_passed";
    ShellMissing127IsStartFailure => "exec.exit_127_is_the_programs_own";
    SignalAsExitCode => "exec.signal_death_is_not_exit_137";
    ExitBeforeOutput => "exec.exit_arrives_once_and_last";
    StreamWithoutExit => "exec.shell_form_runs_a_script";
    ArgvThroughShell => "exec.argv_form_runs_without_a_shell";
    StartFailureAsExit127 => "start.missing_program_is_not_found", "jobs.job_that_cannot_start_says_so";
    NotExecutableAsNotFound => "start.file_that_is_no_program_is_not_executable";
    MissingCwdRunsElsewhere => "start.missing_cwd_is_named";
    FileCwdAsMissing => "start.cwd_that_is_a_file_is_named";
    UnknownUserIsRoot => "start.unknown_user_is_named";
    ScriptSplicedIntoOneLine => "shell.here_document_ends_where_it_ends";
    WrapperAfterScript => "shell.comment_or_backslash_at_the_end_is_harmless";
    PipedThroughCat => "shell.pipe_keeps_its_exit_code";
    LoginShell => "shell.it_is_not_a_login_shell";
    ChosenShellIgnored => "shell.chosen_shell_is_used";
    ScriptCutAt128K => "shell.script_of_300_kb_runs";
    StdinLeftOpen => "stdin.it_is_at_its_end_by_default";
    EmptyStdinLeftOpen => "stdin.empty_bytes_are_an_end";
    StdinBytesNeverClosed => "stdin.three_bytes_and_then_the_end";
    StdinLossy => "stdin.bytes_arrive_unchanged";
    StdinCutAt64K => "stdin.eight_mib_through_cat_come_back";
    StdinHeldBack => "stdin.streamed_input_arrives_before_it_is_closed";
    LateWriteAccepted => "stdin.writing_after_the_close_is_refused";
    StreamsSwapped => "output.stdout_and_stderr_are_separate";
    StderrMerged => "output.stdout_and_stderr_are_separate";
    LossyText => "output.nul_and_non_utf8_bytes_are_unchanged";
    DropsLastChunk => "output.last_bytes_without_newline_arrive";
    DecodesEachChunk => "output.character_split_over_time_stays_whole";
    OutputCutAt1MiB => "output.three_million_lines_are_counted";
    SlowReaderLosesBytes => "output.slow_reader_loses_nothing";
    OutputOnlyAtTheEnd => "output.output_arrives_while_the_command_runs";
    ArgumentsCut => "limits.argument_at_the_limit_runs";
    EnvCutAtNewline => "env.values_are_exact";
    SpecEnvIgnored => "env.values_of_the_spec_are_exact", "field.env";
    SpecEnvGoesBeforeExec => "env.exec_goes_before_spec";
    EnvStays => "env.variables_of_one_exec_are_not_seen_by_the_next";
    HostEnvMerged => "env.host_variables_do_not_leak";
    BashEnvSourced => "env.bash_env_is_sourced_only_if_given_on_the_exec";
    DescriptorInherited => "env.no_descriptor_is_inherited";
    CwdIgnored => "cwd.it_is_used_by_both_forms", "field.exec.cwd";
    RelativeCwdBelowRoot => "cwd.relative_one_is_below_the_workdir", "cwd.relative_one_is_below_the_workdir_of_the_spec";
    WorkdirNotMade => "cwd.workdir_is_made_and_is_the_default";
    UserIgnored => "user.numeric_user_and_group_are_switched_to", "user.user_without_passwd_entry_is_nobody_else", "user.user_by_name_has_the_ids_of_that_name", "field.exec.user";
    GroupsKept => "user.numeric_user_and_group_are_switched_to";
    SpecUserIgnored => "user.user_of_the_spec_is_the_default", "field.user";
    TimeoutIgnored => "timeout.answer_comes_near_the_deadline", "field.exec.timeout_s";
    TimeoutLosesOutput => "timeout.partial_output_of_both_streams_is_kept";
    TimeoutAsExit124 => "timeout.answer_comes_near_the_deadline";
    TimeoutKillsDirectChildOnly => "timeout.child_is_killed", "timeout.double_forked_child_is_killed";
    TimeoutKillsGroupOnly => "timeout.setsid_child_is_killed";
    TimeoutKillsSession => "timeout.other_commands_live_on";
    TimeoutSendsSigtermOnly => "timeout.command_that_ignores_sigterm_is_killed";
    IdleTimeoutIgnored => "timeout.silence_ends_an_idle_command";
    IdleTimeoutIsTotal => "timeout.output_keeps_an_idle_command_alive";
    GraceIgnored => "timeout.grace_gives_sigterm_first";
    SigtermWithoutGrace => "timeout.no_grace_gives_no_sigterm";
    DropDoesNotKill => "cancel.dropping_the_stream_kills_the_tree";
    KillEndsDirectChildOnly => "cancel.kill_ends_the_tree_and_the_exit_still_arrives", "jobs.killed_job_ends_with_its_tree";
    SignalIgnored => "cancel.signal_reaches_the_command";
    BackgroundHoldsCaller => "background.child_does_not_hold_the_caller";
    BackgroundEndsWithExec => "background.child_lives_on_and_ends_with_the_sandbox", "services.background_service_lives_on", "services.resumed_sandbox_goes_on";
    BackgroundSurvivesClose => "background.child_lives_on_and_ends_with_the_sandbox", "services.paused_sandbox_can_be_closed";
    BackgroundGetsSigpipe => "background.child_that_keeps_writing_is_not_killed";
    OpenOutputNotTold => "background.child_that_holds_the_output_is_told";
    OrphansNotReaped => "background.orphans_leave_no_zombies";
    OutputsMixed => "concurrency.outputs_of_32_commands_do_not_mix";
    ExecsOneByOne => "concurrency.long_command_does_not_block_others";
    WorkspaceShared => "concurrency.two_sandboxes_work_side_by_side";
    UploadCutAt18K => "upload.every_size_arrives_whole_and_comes_back", "upload.eight_at_once_arrive", "download.bytes_are_exact";
    UploadWithoutParents => "upload.parents_are_made";
    ModeLost => "upload.mode_is_kept";
    NamesMangled => "upload.odd_names_are_exact";
    RelativePathBelowTmp => "upload.relative_path_is_below_the_workdir";
    UploadOverwritesInPlace => "upload.existing_file_is_replaced_whole";
    UploadIntoFolder => "upload.folder_as_target_is_refused";
    ParentStepsEscape => "upload.parent_steps_do_not_escape", "download.parent_steps_do_not_escape";
    DownloadLeavesHalf => "download.missing_file_leaves_the_old_one";
    DownloadOfFolderIsEmptyFile => "download.folder_is_refused";
    SpecialFileRead => "download.special_file_is_refused_at_once";
    LinkMadeOnHost => "download.link_never_becomes_a_link_of_the_host";
    LocalLinkFollowed => "download.local_link_is_replaced_and_not_followed";
    DownloadWithoutParents => "download.local_parents_are_made";
    TemporaryFileLeft => "download.no_temporary_file_is_left";
    StatusInvented => "lifecycle.status_is_running_and_then_stopped";
    CloseNotIdempotent => "lifecycle.close_again_succeeds";
    ParallelCloseFails => "lifecycle.ten_closes_at_once_succeed";
    CloseLeavesExec => "lifecycle.close_ends_a_running_command";
    ExecAfterClose => "lifecycle.calls_after_the_close_are_refused";
    ForeignHandleAccepted => "lifecycle.foreign_handle_is_refused";
    GenerationIgnored => "lifecycle.older_generation_is_refused";
    FilesStayAfterClose => "lifecycle.files_are_gone_after_the_close";
    DroppedCreateLeaks => "lifecycle.dropped_create_leaves_nothing";
    OptionsIgnored => "lifecycle.refused_create_leaves_nothing";
    TtlIgnored => "lifecycle.ttl_ends_the_sandbox";
    AcloseEndsSandboxes => "lifecycle.aclose_leaves_sandboxes_alone";
    ListUnsupported => "ownership.running_sandbox_is_listed_until_it_is_closed";
    LabelsLost => "ownership.labels_are_listed_and_filter";
    IdentityLost => "ownership.identity_is_kept";
    AgeFilterIgnored => "ownership.age_filters";
    SweepDoesNothing => "ownership.sweep_takes_the_sandbox_of_a_dead_owner";
    SweepByPidAlone => "ownership.sweep_never_takes_the_sandbox_of_a_live_owner";
    SweepTakesEverything => "ownership.sweep_takes_a_lease_only_when_it_is_past";
    DryRunRemoves => "ownership.dry_run_removes_nothing";
    RenewIgnored => "services.renew_moves_the_expiry";
    ExecWhilePaused => "services.command_on_a_paused_sandbox_is_refused";
    ConnectFindsAnother => "services.another_process_finds_the_sandbox";
    AnyDescriptorTaken => "services.wrong_descriptor_is_refused";
    SecretInDescriptor => "services.descriptor_holds_no_secret";
    EveryPortHasEndpoint => "services.declared_port_has_an_endpoint";
    MetricsOfTheGone => "services.metrics_are_measured";
    FilesUnsupported => "files.written_bytes_are_read_back", "files.wrong_kinds_are_refused", "directories.downloaded_folder_comes_as_it_is";
    RangeIgnored => "files.part_of_a_file_is_read";
    WriteModeIgnored => "files.mode_of_a_written_file_is_set_or_kept";
    ListUnsorted => "files.list_is_sorted_and_typed";
    StatFollowsLinks => "files.stat_describes_a_link_itself";
    RemoveAlwaysRecursive => "files.remove_takes_a_full_folder_only_if_asked";
    MakeDirReplaces => "files.make_dir_is_repeatable_and_never_replaces";
    UploadDirNests => "directories.uploaded_folder_arrives_as_it_is";
    UploadDirFollowsLinks => "directories.uploaded_links_are_never_followed";
    HostileLinksKept => "directories.hostile_links_are_refused";
    SpecialFilesSkipped => "directories.special_files_are_refused";
    LocalDirLinkFollowed => "directories.local_link_is_not_written_through";
    PtySizeIgnored => "pty.size_is_there_from_the_start_and_changes";
    PtyExitCodeLost => "pty.session_opens_runs_and_gives_its_exit_code";
    PtyNotATerminal => "pty.input_is_echoed_and_interrupts";
    PtyPipesMerged => "pty.pipe_mode_separates_the_streams";
    PtyResizeIgnored => "pty.resize_is_told_to_the_foreground_program", "pty.size_is_there_from_the_start_and_changes";
    PtyInterruptEndsAll => "pty.interrupt_key_reaches_the_foreground_job_only";
    PtyDetachEndsSession => "pty.detached_session_goes_on_and_is_attached";
    PtyOffsetIgnored => "pty.attach_replays_from_an_offset";
    PtyGapNotTold => "pty.output_that_is_no_longer_kept_is_a_gap";
    PtyTakeoverLeavesHolder => "pty.takeover_evicts_the_holder";
    PtyHeldIsShared => "pty.held_session_is_refused_without_takeover";
    JobOutputLost => "jobs.job_runs_on_and_keeps_its_output";
    JobOffsetIgnored => "jobs.job_output_goes_on_from_an_offset";
    KnownJobStartsAgain => "jobs.known_id_starts_no_second_job";
    JobEndsWithItsReader => "jobs.leaving_a_job_does_not_end_it";
    JobLeavesItsChildren => "jobs.tree_kill_of_a_job_that_is_over_ends_what_it_left";
    JobWaitHasNoLimit => "jobs.wait_for_a_job_has_a_limit";
    UnknownJobAccepted => "jobs.unknown_job_is_not_found";
    SecretInError => "hygiene.secrets_are_not_in_errors";
    SecretInLog => "hygiene.secrets_are_not_in_log_events";
    FailedStartEndsSandbox => "start.failed_start_leaves_the_sandbox_usable";
    VariablesKept => "shell.exit_and_set_e_end_only_their_own_command";
    FolderKept => "cwd.change_of_one_exec_is_not_seen_by_the_next";
    UnreadInputIsLost => "stdin.command_that_does_not_read_it_still_ends";
    StreamCutAt4MiB => "output.all_bytes_arrive_without_a_limit";
    TerminalLineEnds => "output.nothing_becomes_a_terminal";
    NoPath => "env.there_is_a_path";
    ExecEnvIgnored => "env.values_are_exact", "field.exec.env";
    TimeoutTooShort => "timeout.command_that_is_in_time_is_not_touched";
    ControlAfterEndAccepted => "cancel.control_after_the_end_is_refused";
    MissingLocalFileIsEmpty => "upload.missing_local_file_is_not_found";
    CreateReturnsEarly => "lifecycle.created_sandbox_runs_commands_at_once";
    RenewOfGoneAccepted => "services.renew_of_a_gone_sandbox_is_refused";
    RemoveFollowsLinks => "files.remove_of_a_link_keeps_its_target";
    PtyOutlivesDrop => "pty.dropping_the_session_kills_it";
    PtyResizedAfterEnd => "pty.resize_after_the_end_is_refused";
    IdleFieldIgnored => "field.exec.idle_timeout_s";
    MetadataFieldIgnored => "field.metadata";
    CapabilityNotDeclared => "capability.metrics_is_declared_if_and_only_if_it_is_there";
    CapabilityWithoutAccessor => "capability.snapshots_is_declared_if_and_only_if_it_is_there";
    InfoHasAnotherName => "provider.info_is_its_own_and_stays";
}
