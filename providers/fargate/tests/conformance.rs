//! The provider contract, through the SSH server of the sidecar.

mod contract;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fargate_keeps_the_provider_contract() {
    contract::is_kept("ssh").await;
}
