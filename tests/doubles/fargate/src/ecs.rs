//! The operations of ECS: what moto's answers become, and what it does not check.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    definition::{Definition, Overrides},
    error::Refusal,
    sizes,
    task::{Stop, Task},
    world::World,
};

/// The most tasks that are described, or listed, at once.
const PAGE: usize = 100;

/// Checks a request before moto sees it.
pub(crate) fn check(world: &World, operation: &str, request: &Value) -> Result<(), Refusal> {
    match operation {
        "RegisterTaskDefinition" => Definition::check(request),
        "RunTask" => check_run(world, request),
        "DescribeTasks" if count(&request["tasks"]) > PAGE => {
            Err(Refusal::parameter("Tasks cannot have more than 100 elements."))
        }
        "ListTasks" if !request["startedBy"].is_null() => {
            let others = ["desiredStatus", "family", "launchType", "serviceName", "containerInstance"];
            match others.iter().find(|key| !request[**key].is_null()) {
                Some(key) => Err(Refusal::parameter(format!("startedBy cannot be used together with {key}."))),
                None => Ok(()),
            }
        }
        "StopTask" if world.task(text(&request["task"])).is_none() => {
            Err(Refusal::parameter("The referenced task was not found."))
        }
        _ => Ok(()),
    }
}

fn count(list: &Value) -> usize {
    list.as_array().map_or(0, Vec::len)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn check_run(world: &World, request: &Value) -> Result<(), Refusal> {
    for (key, most) in [("clientToken", 64), ("startedBy", 128), ("referenceId", 1024)] {
        if text(&request[key]).len() > most {
            return Err(Refusal::parameter(format!("{key} must be at most {most} characters.")));
        }
    }
    if !(1..=10).contains(&request["count"].as_u64().unwrap_or(1)) {
        return Err(Refusal::parameter("Count must be between 1 and 10."));
    }
    let strategies = request["capacityProviderStrategy"].as_array();
    let is_fargate = match strategies {
        Some(all) => all.iter().all(|one| text(&one["capacityProvider"]).starts_with("FARGATE")),
        None => request["launchType"] == "FARGATE",
    };
    if !is_fargate {
        return Err(Refusal::parameter("The double has tasks on Fargate only."));
    }
    // Another name than the ARN is moto's to find; the sizes are checked with the answer then.
    if let Some(definition) = find_definition(world, text(&request["taskDefinition"])) {
        let default = json!({ "cpu": definition.cpu, "memory": definition.memory });
        sizes::check(&request["overrides"], &default, "InvalidParameterException")?;
        Overrides::parse(&request["overrides"], &definition)?;
    }
    Ok(())
}

/// By its ARN, by `family:revision`, or the newest of a family.
fn find_definition(world: &World, name: &str) -> Option<Definition> {
    let known = world.definitions();
    let revision = |arn: &str| arn.rsplit(':').next().and_then(|number| number.parse::<u64>().ok()).unwrap_or_default();
    let found = known.iter().filter(|(arn, _)| {
        let short = arn.rsplit('/').next().unwrap_or(arn);
        *arn == name || short == name || short.rsplit_once(':').is_some_and(|(family, _)| family == name)
    });
    found.max_by_key(|(arn, _)| revision(arn)).map(|(_, definition)| definition.clone())
}

/// What a replayed token is answered, if it is one.
pub(crate) fn replay(asked: &Value, request: &Value, tasks: &[Arc<Task>]) -> Result<Value, Refusal> {
    if asked != request {
        let message = "The clientToken was used before, with other parameters.";
        return Err(Refusal::new("ConflictException", message));
    }
    let views: Vec<Value> = tasks.iter().map(|task| task.view(&task.record)).collect();
    Ok(json!({ "tasks": views, "failures": [] }))
}

/// What moto's answer becomes. Tasks that it started begin to live; they are returned besides.
pub(crate) fn rewrite(
    world: &Arc<World>,
    operation: &str,
    request: &Value,
    mut answer: Value,
) -> Result<(Value, Vec<Arc<Task>>), Refusal> {
    let mut started = Vec::new();
    match operation {
        "RegisterTaskDefinition" => remember(world, &answer["taskDefinition"])?,
        "RunTask" => {
            for record in answer["tasks"].as_array_mut().into_iter().flatten() {
                let arn = text(&record["taskDefinitionArn"]).to_owned();
                let definition = find_definition(world, &arn);
                let definition =
                    definition.ok_or_else(|| Refusal::new("ClientException", "TaskDefinition not found."))?;
                let overrides = Overrides::parse(&request["overrides"], &definition)?;
                let task = Task::new(record, definition, overrides, world.timing.distance);
                let task = task.ok_or_else(|| Refusal::parameter("The task got no network interface."))?;
                *record = task.view(record);
                world.begin(task.clone());
                started.push(task);
            }
        }
        "StopTask" => {
            if let Some(task) = world.task(text(&request["task"])) {
                task.ask_to_stop(Stop::asked(request["reason"].as_str().unwrap_or("Task stopped by user")));
                answer["task"] = task.view(&answer["task"]);
            }
        }
        "DescribeTasks" => {
            for record in answer["tasks"].as_array_mut().into_iter().flatten() {
                if let Some(task) = world.task(text(&record["taskArn"])) {
                    *record = task.view(record);
                }
            }
            let missing: Vec<Value> = request["tasks"].as_array().into_iter().flatten().cloned().collect();
            let missing = missing.iter().filter(|name| world.task(text(name)).is_none());
            answer["failures"] = missing.map(|name| json!({ "arn": name, "reason": "MISSING" })).collect();
        }
        "ListTasks" => list(world, request, &mut answer),
        _ => {}
    }
    Ok((answer, started))
}

/// What DescribeTasks says when it knows nothing.
pub(crate) fn all_missing(request: &Value) -> Value {
    let names = request["tasks"].as_array().into_iter().flatten();
    let failures: Vec<Value> = names.map(|name| json!({ "arn": name, "reason": "MISSING" })).collect();
    json!({ "tasks": [], "failures": failures })
}

fn remember(world: &World, definition: &Value) -> Result<(), Refusal> {
    let parsed = Definition::parse(definition)?;
    world.definitions().insert(text(&definition["taskDefinitionArn"]).to_owned(), parsed);
    Ok(())
}

/// Those that are to run, or with `desiredStatus` those that are not, a page at a time.
fn list(world: &World, request: &Value, answer: &mut Value) {
    let is_wanted = request["desiredStatus"] != "STOPPED";
    let mut all = answer["taskArns"].as_array().cloned().unwrap_or_default();
    all.retain(|arn| world.task(text(arn)).is_some_and(|task| task.is_wanted() == is_wanted));
    let begin: usize = text(&request["nextToken"]).parse().unwrap_or_default();
    let page = request["maxResults"].as_u64().and_then(|most| usize::try_from(most).ok()).unwrap_or(PAGE);
    let end = begin.saturating_add(page.clamp(1, PAGE)).min(all.len());
    if end < all.len() {
        answer["nextToken"] = json!(end.to_string());
    }
    answer["taskArns"] = Value::Array(all.drain(begin.min(end)..end).collect());
}
