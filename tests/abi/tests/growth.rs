//! Starting hosts over and over costs nothing that stays. One test: it counts what the whole process holds.

use sandbox_abi_tests::{
    build::Fixture,
    hosting::{create, host, run},
    measure::{holdings, images_of, resident_kib},
    wait::{PATIENCE, eventually},
};
use sandbox_core::ExecRequest;
use serde_json::json;

/// One start of a host: finds, inspects and loads the plugin, makes a provider, and now and then uses it.
async fn start(number: usize) {
    let plugin = Fixture::Second.path();
    let host = host(&[&plugin]);
    let provider = host.create("second", &json!({"color": "blue"})).unwrap();
    if number.is_multiple_of(10) {
        let handle = create(&*provider).await.unwrap();
        let result = run(&*provider, &handle, ExecRequest::shell("exit 3")).await.unwrap();
        assert_eq!(result.return_code(), 3);
        provider.close(&handle).await.unwrap();
    }
    provider.aclose().await.unwrap();
}

#[tokio::test]
async fn a_thousand_host_starts_with_the_plugin_loaded_leave_no_descriptor_thread_mapping_or_memory() {
    const STARTS: usize = 1_000;
    // The allocators and the runtimes take what they need once.
    for number in 0..50 {
        start(number).await;
    }
    let (before, memory) = (holdings(), resident_kib());
    for number in 0..STARTS {
        start(number).await;
    }
    let settled = eventually(PATIENCE, || {
        let after = holdings();
        // Allocators may map a few regions more or less, threads of a pool may end.
        after.descriptors <= before.descriptors
            && after.threads <= before.threads
            && after.mappings <= before.mappings + 4
    });
    assert!(settled.await, "before {before:?}, after {:?}", holdings());
    let grown_kib = resident_kib().saturating_sub(memory);
    assert!(grown_kib < 8 * 1024, "{grown_kib} KiB");
    assert_eq!(images_of(&Fixture::Second.path()), 1);
    calls_leave_no_memory().await;
}

async fn calls_leave_no_memory() {
    const CALLS: usize = 20_000;
    let plugin = Fixture::Second.path();
    let provider = host(&[&plugin]).create("second", &json!({})).unwrap();
    let handle = create(&*provider).await.unwrap();
    let mut memory = 0;
    for number in 0..CALLS {
        if number == CALLS / 10 {
            memory = resident_kib();
        }
        provider.status(&handle).await.unwrap();
        let local = std::path::Path::new("/nowhere");
        provider.upload_file(&handle, local, &"x".into()).await.unwrap_err();
    }
    let grown_kib = resident_kib().saturating_sub(memory);
    assert!(grown_kib < 2 * 1024, "{grown_kib} KiB");
}
