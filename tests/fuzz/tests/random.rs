//! The fuzz targets on random inputs, and on good inputs with something changed.

use proptest::{collection::vec, prelude::*, sample::Index};
use sandbox_fuzz::{MANIFEST_HEAD, byte_string, frame, manifest, message, provider_toml};

const TOML: &str = "name = \"acme\"\ndescription = \"x\"\ncapabilities = [\"sandbox.files/1\"]\n";
const EXIT: &str = "\0{\"outcome\":{\"exited\":3},\"usage\":{\"cpu_time_s\":0.5},\"oom\":null,\"output_open\":true}";
const SPEC: &str = "{\"env\":{\"A\":{\"hex\":\"ff\"}},\"files\":{\"/f\":\"x\"},\"ports\":[80,\"81\"],\"ttl_s\":1.5,\"resources\":{\"cpu\":1}}";
const EXEC: &str =
    "{\"command\":{\"argv\":[\"a\",{\"hex\":\"00\"}]},\"timeout_s\":1e9,\"stdin\":\"stream\",\"env\":{\"A\":\"b\"}}";

/// A good input with a few bytes replaced, inserted or cut.
fn mutated(good: &'static str) -> impl Strategy<Value = Vec<u8>> {
    vec((any::<Index>(), any::<u8>(), 0..4u8), 0..6).prop_map(move |changes| {
        let mut bytes = good.as_bytes().to_vec();
        for (place, byte, what) in changes {
            if bytes.is_empty() {
                break;
            }
            let place = place.index(bytes.len());
            match what {
                0 => bytes[place] = byte,
                1 => bytes.insert(place, byte),
                2 => drop(bytes.remove(place)),
                _ => bytes.truncate(place),
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_manifest_is_read_or_refused(bytes in prop_oneof![vec(any::<u8>(), 0..300), mutated(MANIFEST_HEAD)]) {
        manifest(&bytes);
    }

    #[test]
    fn any_provider_toml_is_read_or_refused(bytes in prop_oneof![vec(any::<u8>(), 0..300), mutated(TOML)]) {
        provider_toml(&bytes);
    }

    #[test]
    fn any_frame_is_an_event_or_refused(bytes in prop_oneof![vec(any::<u8>(), 0..300), mutated(EXIT)]) {
        frame(&bytes);
    }

    #[test]
    fn any_message_is_read_or_refused(bytes in prop_oneof![vec(any::<u8>(), 0..300), mutated(SPEC), mutated(EXEC)]) {
        message(&bytes);
    }

    #[test]
    fn any_bytes_come_back_from_json(bytes in vec(any::<u8>(), 0..300)) {
        byte_string(&bytes);
    }
}

#[test]
fn the_good_inputs_are_good() {
    let section = [MANIFEST_HEAD, TOML].concat();
    sandbox_core::ProviderManifest::parse(section.as_bytes()).expect("the manifest is good");
    let spec = serde_json::from_str(SPEC).expect("the spec is JSON");
    sandbox_core::SandboxSpec::from_json(spec).expect("the spec is good");
    serde_json::from_str::<sandbox_core::ExecRequest>(EXEC).expect("the request is good");
    use sandbox_core::SessionEvent;
    let exit = bytes::Bytes::from_static(&EXIT.as_bytes()[1..]);
    assert!(matches!(sandbox_core::ExecEvent::from_frame(0, exit), Ok(Some(_))));
}
