//! The build service: what it is asked to copy and build becomes images of tasks.
//!
//! It knows of a build file what the tests need: `FROM` an image of the double and `COPY`. Its log is that of the builder.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};

use crate::world::World;

/// How long every build takes.
const TAKES: Duration = Duration::from_millis(700);

/// What became of a build.
#[derive(Clone, Debug)]
pub(crate) struct Build {
    status: &'static str,
    log: String,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// What moto's answers become.
pub(crate) fn rewrite(world: &Arc<World>, operation: &str, request: &Value, mut answer: Value) -> Value {
    match operation {
        "StartBuild" => {
            let id = text(&answer["build"]["id"]).to_owned();
            world.builds().insert(id.clone(), Build { status: "IN_PROGRESS", log: String::new() });
            tell(&mut answer["build"], &id, &Build { status: "IN_PROGRESS", log: String::new() });
            let (world, request) = (world.clone(), request.clone());
            tokio::spawn(async move {
                tokio::time::sleep(TAKES).await;
                let mut log = String::new();
                let made = make(&world, &request, &mut log);
                if let Err(why) = &made {
                    log.push_str(&format!("ERROR: {why}\n"));
                }
                let mut builds = world.builds();
                // One that was stopped meanwhile has made nothing.
                if let Some(build) = builds.get_mut(&id).filter(|build| build.status == "IN_PROGRESS") {
                    build.log = log;
                    build.status = if made.is_ok() { "SUCCEEDED" } else { "FAILED" };
                    for (name, root) in made.into_iter().flatten() {
                        world.pushed().insert(name, root);
                    }
                }
            });
        }
        "BatchGetBuilds" => {
            for build in answer["builds"].as_array_mut().into_iter().flatten() {
                let id = text(&build["id"]).to_owned();
                if let Some(known) = world.builds().get(&id) {
                    tell(build, &id, known);
                }
            }
        }
        "StopBuild" => {
            if let Some(build) = world.builds().get_mut(text(&request["id"])) {
                build.status = "STOPPED";
            }
        }
        _ => {}
    }
    answer
}

fn tell(answer: &mut Value, id: &str, build: &Build) {
    answer["buildStatus"] = json!(build.status);
    answer["logs"] = json!({ "groupName": "/aws/codebuild/double", "streamName": id });
    let context = json!({ "statusCode": "COMMAND_EXECUTION_ERROR", "message": "exit status 1" });
    answer["phases"] = match build.status {
        "FAILED" => json!([
            { "phaseType": "INSTALL", "phaseStatus": "SUCCEEDED" },
            { "phaseType": "BUILD", "phaseStatus": "FAILED", "contexts": [context] },
        ]),
        _ => json!([{ "phaseType": "INSTALL", "phaseStatus": "SUCCEEDED" }]),
    };
}

/// What a build said, from a place on; none for a log that is not its.
pub(crate) fn log(world: &World, request: &Value) -> Option<Value> {
    let builds = world.builds();
    let build = builds.get(text(&request["logStreamName"]))?;
    let begin = text(&request["nextToken"]).parse().unwrap_or(0_usize).min(build.log.len());
    let rest = &build.log[begin..];
    let events: Vec<Value> = rest.lines().map(|line| json!({ "message": format!("{line}\n") })).collect();
    Some(json!({ "events": events, "nextForwardToken": build.log.len().to_string() }))
}

/// Whether the registry has an image that a build has made.
pub(crate) fn image(world: &World, request: &Value) -> Option<Value> {
    let (name, tag) = (text(&request["repositoryName"]), text(&request["imageIds"][0]["imageTag"]));
    let end = format!("/{name}:{tag}");
    let is_there = world.pushed().keys().any(|known| known.ends_with(&end));
    is_there.then(|| json!({ "imageDetails": [{ "repositoryName": name, "imageTags": [tag] }] }))
}

fn variables(request: &Value) -> BTreeMap<&str, &str> {
    let all = request["environmentVariablesOverride"].as_array().into_iter().flatten();
    all.map(|one| (text(&one["name"]), text(&one["value"]))).collect()
}

/// The images that a build makes, by their names.
fn make(world: &World, request: &Value, log: &mut String) -> Result<Vec<(String, PathBuf)>, String> {
    let variables = variables(request);
    if let Some(source) = variables.get("SANDBOX_SOURCE") {
        log.push_str(&format!("{source}: Pulling\n"));
        let root =
            world.find_image(source).ok_or_else(|| format!("manifest for {source} not found: manifest unknown"))?;
        return Ok(vec![(variables["SANDBOX_IMAGE"].to_owned(), root)]);
    }
    let location = text(&request["sourceLocationOverride"]);
    let archive = world.objects().get(&format!("/{location}")).cloned().flatten();
    let archive = archive.ok_or_else(|| format!("NoSuchKey: {location}"))?;
    let folder = world.folder.join("builds").join(world.pushed().len().to_string() + &location.replace('/', "-"));
    let failed = |error: io::Error| error.to_string();
    fs::create_dir_all(folder.join("context")).map_err(failed)?;
    fs::write(folder.join("archive.zip"), &archive).map_err(failed)?;
    let unpack = "import zipfile; zipfile.ZipFile('archive.zip').extractall('.')";
    run(Command::new("python3").args(["-c", unpack]).current_dir(&folder))?;
    run(Command::new("tar").args(["-xf", "context.tar", "-C", "context"]).current_dir(&folder))?;
    let words = |name: &str| -> Result<Vec<String>, String> {
        let text = fs::read_to_string(folder.join(name)).map_err(failed)?;
        Ok(text.split_terminator('\0').map(str::to_owned).collect())
    };
    let argv = words("argv")?;
    let file = argv.iter().skip_while(|word| *word != "-f").nth(1).ok_or("no build file")?;
    let text = fs::read_to_string(folder.join("context").join(file)).map_err(failed)?;
    let root = build(world, &text, &folder, log)?;
    Ok(words("images")?.into_iter().map(|name| (name, root.clone())).collect())
}

fn build(world: &World, file: &str, folder: &Path, log: &mut String) -> Result<PathBuf, String> {
    let lines: Vec<&str> =
        file.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let root = folder.join("root");
    for (index, line) in lines.iter().enumerate() {
        let step = format!("[{}/{}] {line}", index + 1, lines.len());
        let words: Vec<&str> = line.split_whitespace().collect();
        log.push_str(&format!("#{index} {step}\n"));
        let done = match words.as_slice() {
            ["FROM", image] => match world.find_image(image) {
                Some(base) => run(Command::new("cp").arg("-a").arg(base).arg(&root)),
                None => Err(format!("{image}: manifest unknown")),
            },
            ["COPY", from, to] if root.exists() => {
                copy(&folder.join("context").join(from), &root.join(to.trim_start_matches('/')))
            }
            [word, ..] => {
                return Err(format!("dockerfile parse error on line {}: unknown instruction: {word}", index + 1));
            }
            [] => Ok(()),
        };
        if let Err(why) = done {
            log.push_str(&format!("------\n > {step}:\n------\n"));
            return Err(why);
        }
    }
    match root.exists() {
        true => Ok(root),
        false => Err("dockerfile parse error: file with no instructions".to_owned()),
    }
}

/// The contents of a folder, or a file.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    if from.is_dir() {
        fs::create_dir_all(to).map_err(|error| error.to_string())?;
        return run(Command::new("cp").arg("-a").arg(from.join(".")).arg(to));
    }
    fs::create_dir_all(to.parent().unwrap_or(to)).map_err(|error| error.to_string())?;
    run(Command::new("cp").arg("-a").arg(from).arg(to))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
