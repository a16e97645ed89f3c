//! The provider contract, straight to the agent by the task's address.

mod contract;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fargate_without_a_tunnel_keeps_the_provider_contract() {
    contract::is_kept("direct").await;
}
