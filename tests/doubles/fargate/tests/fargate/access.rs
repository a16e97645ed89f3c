//! Who may do what.

use fargate_double::{Double, Options};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{Client, definition, double, script};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_secret_and_a_missing_permission_are_refused() {
    let (double, mut operator) = double().await;
    let ask = || ("ecs", "list_tasks", json!({"cluster": double.account().cluster}));
    let (service, operation, arguments) = ask();
    assert_eq!(operator.ask(service, operation, arguments).unwrap()["taskArns"], json!([]));
    let key = &double.account().operator;
    let mut forger = Client::with(&double, &key.access_key_id, "0123456789012345678901234567890123456789");
    let mut unknown = Client::with(&double, "AKIAIOSFODNN7EXAMPLE", &key.secret_access_key);
    let mut stranger = Client::new(&double, &double.account().stranger);
    for (client, part) in [
        (&mut forger, "InvalidSignatureException"),
        (&mut unknown, "UnrecognizedClientException"),
        (&mut stranger, "AccessDeniedException"),
    ] {
        let (service, operation, arguments) = ask();
        let error = client.ask(service, operation, arguments).unwrap_err();
        assert_eq!((&error["error"], &error["status"]), (&json!(part), &json!(400)), "{error}");
    }
    // What the operator's policy does not name.
    let error = operator.ask("ecs", "delete_cluster", json!({"cluster": "sandboxes"})).unwrap_err();
    assert!(error["error"].as_str().unwrap().contains("AccessDenied"), "{error}");
    double.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy_is_the_one_that_is_given() {
    let statement = json!({"Effect": "Allow", "Action": ["ecs:List*"], "Resource": "arn:aws:ecs:*:*:task/x/*"});
    let policy = json!({"Version": "2012-10-17", "Statement": [statement]});
    let double = Double::start_with(Options { policy, ..Options::default() }).await.unwrap();
    let mut client = Client::new(&double, &double.account().operator);
    client.ecs("list_tasks", json!({"cluster": "sandboxes"}));
    let error = client.ask("ecs", "register_task_definition", definition(json!([script("main", "true")]), json!([])));
    assert!(error.unwrap_err()["error"].as_str().unwrap().contains("AccessDenied"));
    double.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_and_secrets_and_files_are_kept() {
    let pairs = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
    let options =
        Options { parameters: pairs("/a/parameter", "1"), secrets: pairs("a-secret", "2"), ..Options::default() };
    let double = Double::start_with(options).await.unwrap();
    let account = double.account();
    let mut client = Client::new(&double, &account.operator);
    let parameter = client.ask("ssm", "get_parameter", json!({"Name": "/a/parameter"})).unwrap();
    assert_eq!(parameter["Parameter"]["Value"], "1");
    let secret = client.ask("secretsmanager", "get_secret_value", json!({"SecretId": account.secrets["a-secret"]}));
    assert_eq!(secret.unwrap()["SecretString"], "2");
    let file = json!({"Bucket": account.bucket, "Key": "a file", "Body": "three"});
    client.ask("s3", "put_object", file).unwrap();
    let mut stranger = Client::new(&double, &account.stranger);
    let file = json!({"Bucket": account.bucket, "Key": "a file"});
    assert_eq!(stranger.ask("s3", "delete_object", file.clone()).unwrap_err()["error"], "AccessDenied");
    client.ask("s3", "delete_object", file).unwrap();
    double.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsigned_request_and_motos_own_switches_are_out_of_reach() {
    let (double, _) = double().await;
    let address = double.url().replace("http://", "");
    let target = "x-amz-target: AmazonEC2ContainerServiceV20141113.ListTasks\r\n";
    for (path, headers) in [("/moto-api/reset-auth", ""), ("/", target)] {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}Content-Length: 2\r\n\r\n{{}}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(!answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        assert!(!answer.contains("taskArns"), "{path}: {answer}");
    }
    double.stop().await;
}
