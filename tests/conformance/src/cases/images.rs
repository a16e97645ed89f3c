//! Images: what they say of themselves, and building them.

use std::path::Path;

use sandbox_core::{BuildEvent, BuildRequest, ErrorKind, Result, SandboxError};

use super::cases;
use crate::{
    check::{Check, Stop, ensure_bytes, ensure_refused},
    context::Context,
    host::within,
    sandbox::RUN_WITHIN,
};

cases! { "images":
    image_of_the_spec_says_what_it_is, "contract: Capabilities, image_config", capability ImageConfig;
    built_image_holds_what_is_copied_and_not_what_is_ignored, "contract: Capabilities, build_image", capability BuildImage;
    build_file_may_be_a_text, "contract: Capabilities, build_image", capability BuildImage;
    failed_build_is_told_with_its_step, "contract: Capabilities, build_image", capability BuildImage;
    context_that_is_not_there_is_named, "contract: Capabilities, build_image", capability BuildImage;
}

fn base(cx: &Context) -> Check<String> {
    cx.spec().image.ok_or_else(|| Stop::skipped("the sandboxes of this run have no image"))
}

fn put(folder: &Path, name: &str, text: &str) -> Check {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
    Ok(std::fs::write(path, text)?)
}

/// A folder to build from, with what every case has in it.
fn request(cx: &Context) -> Check<BuildRequest> {
    let folder = cx.local("context");
    put(&folder, "kept/file", "kept")?;
    put(&folder, "kept/ignored.log", "ignored")?;
    put(&folder, ".dockerignore", "**/*.log\n")?;
    Ok(BuildRequest { context: folder.to_string_lossy().into_owned(), ..BuildRequest::default() })
}

/// Builds to the end.
async fn build(cx: &Context, request: BuildRequest) -> Check<Result<String>> {
    let builder = cx.provider().as_build_image().ok_or_else(|| Stop::failed("build_image is declared, but empty"))?;
    let work = async {
        let mut session = builder.build_image(request).await?;
        while let Some(event) = session.next().await? {
            if let BuildEvent::Built(built) = event {
                return Ok(built.image);
            }
        }
        Err(SandboxError::internal("the build ended without an image and without an error"))
    };
    within(RUN_WITHIN, "the build", work).await
}

async fn image_of_the_spec_says_what_it_is(cx: Context) -> Check {
    let images = cx.provider().as_image_config().ok_or_else(|| Stop::failed("image_config is declared, but empty"))?;
    let config = within(RUN_WITHIN, "looking at the image", images.image_config(base(&cx)?)).await??;
    ensure!(!config.id.is_empty(), "the image has no id");
    ensure!(config.platform.contains('/'), "the platform is {:?}", config.platform);
    Ok(())
}

async fn built_image_holds_what_is_copied_and_not_what_is_ignored(cx: Context) -> Check {
    let request = request(&cx)?;
    put(Path::new(&request.context), "Dockerfile", &format!("FROM {}\nCOPY kept /conformance-kept\n", base(&cx)?))?;
    let image = build(&cx, request).await??;
    let mut spec = cx.spec();
    spec.image = Some(image);
    let sandbox = cx.sandbox_with(spec).await?;
    ensure_bytes(&sandbox.get("/conformance-kept/file").await?, b"kept", "the copied file")?;
    let ignored = sandbox.try_get("/conformance-kept/ignored.log", "ignored").await?;
    ensure_refused(ignored, &[ErrorKind::NotFound], "the file that .dockerignore names")?;
    Ok(())
}

async fn build_file_may_be_a_text(cx: Context) -> Check {
    let mut request = request(&cx)?;
    request.dockerfile_inline = Some(format!("FROM {}\nCOPY . /conformance-all\n", base(&cx)?));
    let image = build(&cx, request).await??;
    let mut spec = cx.spec();
    spec.image = Some(image);
    let sandbox = cx.sandbox_with(spec).await?;
    let names = sandbox.text("cd /conformance-all && echo *").await?;
    ensure_eq!(names, "kept", "what was copied, beside names that begin with a dot");
    Ok(())
}

async fn failed_build_is_told_with_its_step(cx: Context) -> Check {
    let mut request = request(&cx)?;
    request.dockerfile_inline = Some(format!("FROM {}\nCOPY no-such-file /\n", base(&cx)?));
    let error =
        ensure_refused(build(&cx, request.clone()).await?, &[ErrorKind::Create], "a build of what is not there")?;
    ensure!(error.message().contains("2/2") && error.message().contains("COPY"), "the error names no step: {error}");
    request.dockerfile_inline = Some("this is no build file\n".to_owned());
    ensure_refused(build(&cx, request).await?, &[ErrorKind::InvalidInput], "a build file that is none")?;
    Ok(())
}

async fn context_that_is_not_there_is_named(cx: Context) -> Check {
    let request = request(&cx)?;
    let gone = BuildRequest { context: format!("{}-gone", request.context), ..request.clone() };
    let without = BuildRequest { dockerfile: Some("no-such-file".to_owned()), ..request };
    for (request, field) in [(gone, "context"), (without, "dockerfile")] {
        let kinds = [ErrorKind::NotFound, ErrorKind::InvalidInput];
        let error = ensure_refused(build(&cx, request).await?, &kinds, "a build of what is not there")?;
        ensure_eq!(error.field(), Some(field), "the field that the error names");
    }
    Ok(())
}
