//! Every key of the Compose Specification with its shape.

use super::shape::{Fields, Shape};
use Shape::{
    Amount, Any, Bool, Flag, List, MapOf, Maybe, Null, Number, Object, OneOf, Scalar, Text, Texts, Whole, Word,
};

const fn fields(keys: &'static [(&'static str, Shape)]) -> Fields {
    Fields { keys, required: &[] }
}

const LIST_OR_MAP: Shape = OneOf(&[MapOf(&Maybe(&Scalar)), Texts], "a mapping or a list of texts");
const TEXT_OR_LIST: Shape = OneOf(&[Text, Texts], "text or a list of texts");
const COMMAND: Shape = Maybe(&OneOf(&[Text, Texts], "text or a list of texts"));
const OPTIONS: Shape = MapOf(&Maybe(&Amount));
const EXTERNAL: Shape = OneOf(&[Flag, Object(&fields(&[("name", Text)]))], "true or false");

const HOOKS: Shape = List(&Object(&Fields {
    keys: &[
        ("command", COMMAND),
        ("user", Text),
        ("privileged", Flag),
        ("working_dir", Text),
        ("environment", LIST_OR_MAP),
    ],
    required: &["command"],
}));

const GRANTS: Shape = List(&OneOf(
    &[Text, Object(&fields(&[("source", Text), ("target", Text), ("uid", Text), ("gid", Text), ("mode", Amount)]))],
    "text or a mapping",
));

const DEVICES: Shape = List(&Object(&fields(&[
    ("capabilities", Texts),
    ("count", Amount),
    ("device_ids", Texts),
    ("driver", Text),
    ("options", LIST_OR_MAP),
])));
const ULIMITS: Shape = MapOf(&OneOf(
    &[Whole, Object(&Fields { keys: &[("hard", Whole), ("soft", Whole)], required: &["soft", "hard"] })],
    "a whole number or soft and hard",
));

const ROLLING: Shape = Object(&fields(&[
    ("parallelism", Whole),
    ("delay", Text),
    ("failure_action", Text),
    ("monitor", Text),
    ("max_failure_ratio", Number),
    ("order", Word(&["start-first", "stop-first"])),
]));

const BLKIO_LIMITS: Shape = List(&Object(&fields(&[("path", Text), ("rate", Amount)])));

const BUILD: Shape = OneOf(
    &[
        Text,
        Object(&fields(&[
            ("context", Text),
            ("dockerfile", Text),
            ("dockerfile_inline", Text),
            ("entitlements", Texts),
            ("args", LIST_OR_MAP),
            ("ssh", LIST_OR_MAP),
            ("labels", LIST_OR_MAP),
            ("cache_from", Texts),
            ("cache_to", Texts),
            ("no_cache", Flag),
            ("no_cache_filter", TEXT_OR_LIST),
            ("additional_contexts", LIST_OR_MAP),
            ("network", Text),
            ("provenance", Scalar),
            ("sbom", Scalar),
            ("pull", Flag),
            ("target", Text),
            ("shm_size", Amount),
            ("extra_hosts", EXTRA_HOSTS),
            ("isolation", Text),
            ("privileged", Flag),
            ("secrets", GRANTS),
            ("tags", Texts),
            ("ulimits", ULIMITS),
            ("platforms", Texts),
        ])),
    ],
    "text or a mapping",
);

const EXTRA_HOSTS: Shape =
    OneOf(&[MapOf(&OneOf(&[Text, Texts], "text or a list of texts")), Texts], "a mapping or a list of texts");

const DEPLOY: Shape = Maybe(&Object(&fields(&[
    ("mode", Text),
    ("endpoint_mode", Text),
    ("replicas", Whole),
    ("labels", LIST_OR_MAP),
    ("rollback_config", ROLLING),
    ("update_config", ROLLING),
    (
        "resources",
        Object(&fields(&[
            ("limits", Object(&fields(&[("cpus", Number), ("memory", Text), ("pids", Whole)]))),
            (
                "reservations",
                Object(&fields(&[
                    ("cpus", Number),
                    ("memory", Text),
                    ("generic_resources", List(&Any)),
                    ("devices", DEVICES),
                ])),
            ),
        ])),
    ),
    (
        "restart_policy",
        Object(&fields(&[("condition", Text), ("delay", Text), ("max_attempts", Whole), ("window", Text)])),
    ),
    (
        "placement",
        Object(&fields(&[
            ("constraints", Texts),
            ("preferences", List(&Object(&fields(&[("spread", Text)])))),
            ("max_replicas_per_node", Whole),
        ])),
    ),
])));

const HEALTHCHECK: Shape = Object(&fields(&[
    ("disable", Flag),
    ("interval", Text),
    ("retries", Number),
    ("test", TEXT_OR_LIST),
    ("timeout", Text),
    ("start_period", Text),
    ("start_interval", Text),
]));

const DEPENDS_ON: Shape = OneOf(
    &[
        Texts,
        MapOf(&Object(&Fields {
            keys: &[
                ("restart", Flag),
                ("required", Bool),
                ("condition", Word(&["service_started", "service_healthy", "service_completed_successfully"])),
            ],
            required: &["condition"],
        })),
    ],
    "a list of services or a mapping",
);

const ENV_FILE: Shape = OneOf(
    &[
        Text,
        List(&OneOf(
            &[
                Text,
                Object(&Fields { keys: &[("path", Text), ("format", Text), ("required", Flag)], required: &["path"] }),
            ],
            "text or a mapping",
        )),
    ],
    "text or a list",
);

const SERVICE_NETWORKS: Shape = OneOf(
    &[
        Texts,
        MapOf(&Maybe(&Object(&fields(&[
            ("aliases", Texts),
            ("interface_name", Text),
            ("ipv4_address", Text),
            ("ipv6_address", Text),
            ("link_local_ips", Texts),
            ("mac_address", Text),
            ("driver_opts", OPTIONS),
            ("priority", Number),
            ("gw_priority", Number),
        ])))),
    ],
    "a list of networks or a mapping",
);

// That a short form is a port is checked where it is read.
const PORTS: Shape = List(&OneOf(
    &[
        Amount,
        Object(&fields(&[
            ("name", Text),
            ("mode", Text),
            ("host_ip", Text),
            ("target", Whole),
            ("published", Amount),
            ("protocol", Text),
            ("app_protocol", Text),
        ])),
    ],
    "text, a number or a mapping",
));

const VOLUMES: Shape = List(&OneOf(
    &[
        Text,
        Object(&Fields {
            keys: &[
                ("type", Word(&["bind", "volume", "tmpfs", "cluster", "npipe", "image"])),
                ("source", Text),
                ("target", Text),
                ("read_only", Flag),
                ("consistency", Text),
                (
                    "bind",
                    Object(&fields(&[
                        ("propagation", Text),
                        ("create_host_path", Flag),
                        ("recursive", Word(&["enabled", "disabled", "writable", "readonly"])),
                        ("selinux", Word(&["z", "Z"])),
                    ])),
                ),
                ("volume", Object(&fields(&[("labels", LIST_OR_MAP), ("nocopy", Flag), ("subpath", Text)]))),
                ("tmpfs", Object(&fields(&[("size", Amount), ("mode", Amount)]))),
                ("image", Object(&fields(&[("subpath", Text)]))),
            ],
            required: &["type"],
        }),
    ],
    "text or a mapping",
));

const DEVELOP: Shape = Maybe(&Object(&fields(&[(
    "watch",
    List(&Object(&Fields {
        keys: &[
            ("ignore", TEXT_OR_LIST),
            ("include", TEXT_OR_LIST),
            ("path", Text),
            ("action", Word(&["rebuild", "sync", "restart", "sync+restart", "sync+exec"])),
            ("target", Text),
            ("exec", Any),
            ("initial_sync", Bool),
        ],
        required: &["path", "action"],
    })),
)])));

const BLKIO: Shape = Object(&fields(&[
    ("device_read_bps", BLKIO_LIMITS),
    ("device_read_iops", BLKIO_LIMITS),
    ("device_write_bps", BLKIO_LIMITS),
    ("device_write_iops", BLKIO_LIMITS),
    ("weight", Whole),
    ("weight_device", List(&Object(&fields(&[("path", Text), ("weight", Whole)])))),
]));

const EXTENDS: Shape = OneOf(
    &[Text, Object(&Fields { keys: &[("service", Text), ("file", Text)], required: &["service"] })],
    "text or a mapping",
);

/// A service.
pub(crate) const SERVICE: Shape = Object(&fields(&[
    ("annotations", LIST_OR_MAP),
    ("attach", Flag),
    ("blkio_config", BLKIO),
    ("build", BUILD),
    ("cap_add", Texts),
    ("cap_drop", Texts),
    ("cgroup", Word(&["host", "private"])),
    ("cgroup_parent", Text),
    ("command", COMMAND),
    ("configs", GRANTS),
    ("container_name", Text),
    ("cpu_count", Whole),
    ("cpu_percent", Whole),
    ("cpu_period", Amount),
    ("cpu_quota", Amount),
    ("cpu_rt_period", Amount),
    ("cpu_rt_runtime", Amount),
    ("cpu_shares", Number),
    ("cpus", Number),
    ("cpuset", Text),
    ("credential_spec", Object(&fields(&[("config", Text), ("file", Text), ("registry", Text)]))),
    ("depends_on", DEPENDS_ON),
    ("deploy", DEPLOY),
    ("develop", DEVELOP),
    ("device_cgroup_rules", Texts),
    (
        "devices",
        List(&OneOf(
            &[
                Text,
                Object(&Fields {
                    keys: &[("source", Text), ("target", Text), ("permissions", Text)],
                    required: &["source"],
                }),
            ],
            "text or a mapping",
        )),
    ),
    ("dns", TEXT_OR_LIST),
    ("dns_opt", Texts),
    ("dns_search", TEXT_OR_LIST),
    ("domainname", Text),
    ("entrypoint", COMMAND),
    ("env_file", ENV_FILE),
    ("environment", LIST_OR_MAP),
    ("expose", List(&Amount)),
    ("extends", EXTENDS),
    ("external_links", Texts),
    ("extra_hosts", EXTRA_HOSTS),
    ("gpus", OneOf(&[Word(&["all"]), DEVICES], "all or a list")),
    ("group_add", List(&Amount)),
    ("healthcheck", HEALTHCHECK),
    ("hostname", Text),
    ("image", Text),
    ("init", Flag),
    ("ipc", Text),
    ("isolation", Text),
    ("label_file", TEXT_OR_LIST),
    ("labels", LIST_OR_MAP),
    ("links", Texts),
    ("logging", Object(&fields(&[("driver", Text), ("options", OPTIONS)]))),
    ("mac_address", Text),
    ("mem_limit", Amount),
    ("mem_reservation", Amount),
    ("mem_swappiness", Whole),
    ("memswap_limit", Amount),
    ("models", OneOf(&[Texts, MapOf(&Maybe(&MapOf(&Text)))], "a list or a mapping")),
    ("network_mode", Text),
    ("networks", SERVICE_NETWORKS),
    ("oom_kill_disable", Flag),
    ("oom_score_adj", Whole),
    ("pid", OneOf(&[Text, Null], "text")),
    ("pids_limit", Number),
    ("platform", Text),
    ("ports", PORTS),
    ("post_start", HOOKS),
    ("pre_stop", HOOKS),
    ("privileged", Flag),
    ("profiles", Texts),
    ("provider", Object(&Fields { keys: &[("type", Text), ("options", MapOf(&Any))], required: &["type"] })),
    ("pull_policy", Text),
    ("pull_refresh_after", Text),
    ("read_only", Flag),
    ("restart", Text),
    ("runtime", Text),
    ("scale", Whole),
    ("secrets", GRANTS),
    ("security_opt", Texts),
    ("shm_size", Amount),
    ("stdin_open", Flag),
    ("stop_grace_period", Text),
    ("stop_signal", Text),
    ("storage_opt", MapOf(&Any)),
    ("sysctls", LIST_OR_MAP),
    ("tmpfs", TEXT_OR_LIST),
    ("tty", Flag),
    ("ulimits", ULIMITS),
    ("use_api_socket", Bool),
    ("user", Text),
    ("userns_mode", Text),
    ("uts", Text),
    ("volumes", VOLUMES),
    ("volumes_from", Texts),
    ("working_dir", Text),
]));

const NETWORK: Shape = Maybe(&Object(&fields(&[
    ("name", Text),
    ("driver", Text),
    ("driver_opts", OPTIONS),
    (
        "ipam",
        Object(&fields(&[
            ("driver", Text),
            (
                "config",
                List(&Object(&fields(&[
                    ("subnet", Text),
                    ("ip_range", Text),
                    ("gateway", Text),
                    ("aux_addresses", MapOf(&Text)),
                ]))),
            ),
            ("options", MapOf(&Text)),
        ])),
    ),
    ("external", EXTERNAL),
    ("internal", Flag),
    ("enable_ipv4", Flag),
    ("enable_ipv6", Flag),
    ("attachable", Flag),
    ("labels", LIST_OR_MAP),
])));

const VOLUME: Shape = Maybe(&Object(&fields(&[
    ("name", Text),
    ("driver", Text),
    ("driver_opts", OPTIONS),
    ("external", EXTERNAL),
    ("labels", LIST_OR_MAP),
])));

const SECRET: Shape = Object(&fields(&[
    ("name", Text),
    ("environment", Text),
    ("file", Text),
    ("external", EXTERNAL),
    ("labels", LIST_OR_MAP),
    ("driver", Text),
    ("driver_opts", OPTIONS),
    ("template_driver", Text),
]));

const CONFIG: Shape = Object(&fields(&[
    ("name", Text),
    ("content", Text),
    ("environment", Text),
    ("file", Text),
    ("external", EXTERNAL),
    ("labels", LIST_OR_MAP),
    ("template_driver", Text),
]));

/// What a file includes.
pub(crate) const INCLUDE: Shape = List(&OneOf(
    &[Text, Object(&fields(&[("path", TEXT_OR_LIST), ("env_file", TEXT_OR_LIST), ("project_directory", Text)]))],
    "text or a mapping",
));

/// A document.
pub(crate) const DOCUMENT: Shape = Object(&fields(&[
    ("version", Text),
    ("name", Text),
    ("include", INCLUDE),
    ("services", Maybe(&MapOf(&SERVICE))),
    ("networks", Maybe(&MapOf(&NETWORK))),
    ("volumes", Maybe(&MapOf(&VOLUME))),
    ("secrets", Maybe(&MapOf(&SECRET))),
    ("configs", Maybe(&MapOf(&CONFIG))),
    ("models", Maybe(&MapOf(&Any))),
]));

/// The names of the keys of a service.
#[cfg(test)]
pub(crate) fn service_keys() -> impl Iterator<Item = &'static str> {
    let keys: &[(&str, Shape)] = match &SERVICE {
        Object(fields) => fields.keys,
        _ => &[],
    };
    keys.iter().map(|(name, _)| *name)
}
