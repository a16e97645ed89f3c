//! The provider contract, against the double of the service.

use std::sync::Arc;

use sandbox_conformance::{Suite, assert_suite, factory};
use sandbox_core::{SandboxProvider, SandboxSpec, from_json};
use sandbox_daytona_double::{Double, KEY};
use sandbox_provider_daytona::{DaytonaConfig, DaytonaProvider};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn daytona_keeps_the_provider_contract() {
    let double = Double::start().await.expect("the double starts");
    let settings = serde_json::json!({"connection": {"api_key": KEY, "api_url": format!("{}/api", double.url())}});
    let new = move || {
        let settings = settings.clone();
        async move {
            let config: DaytonaConfig = from_json(settings, "config")?;
            Ok(Arc::new(DaytonaProvider::new(config)?) as Arc<dyn SandboxProvider>)
        }
    };
    // Sizes go with an image only.
    let suite = Suite::new(factory(new).with_spec(SandboxSpec::image("debian:12"))).with_minimum_run(206);
    let suite = match std::env::var("DAYTONA_CASES") {
        Ok(filter) => suite.with_filter(filter).with_minimum_run(1),
        Err(_) => suite,
    };
    assert_suite(suite).await;
    assert_eq!(double.sandboxes().await, [], "sandboxes that were left");
    double.stop().await;
}
