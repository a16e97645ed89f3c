use sandbox_core::{Env, Result, SandboxError};

/// What the usual runtimes and build tools read. `MAKEFLAGS` is left out on purpose: it is more than a number.
const NAMES: [&str; 19] = [
    "OMP_NUM_THREADS",
    "OMP_THREAD_LIMIT",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
    "PYTHON_CPU_COUNT",
    "NUMBA_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",
    "POLARS_MAX_THREADS",
    "PYTEST_XDIST_AUTO_NUM_WORKERS",
    "DJANGO_TEST_PROCESSES",
    "GOMAXPROCS",
    "CARGO_BUILD_JOBS",
    "RAYON_NUM_THREADS",
    "RUST_TEST_THREADS",
    "UV_THREADPOOL_SIZE",
    "CMAKE_BUILD_PARALLEL_LEVEL",
];

/// Variables that keep programs from starting a thread per core of the host where a sandbox has fewer: the number of
/// whole cores, at least 1. Empty without a limit. Apply them under the caller's own: explicit values win.
///
/// # Errors
/// `InvalidInput` when the number is infinite or not a number.
pub fn cpu_cap_env(cpu: Option<f64>) -> Result<Env> {
    let Some(cpu) = cpu else { return Ok(Env::default()) };
    if !cpu.is_finite() {
        return Err(SandboxError::invalid_input("cpu", format!("must be a finite number of cores, not {cpu}")));
    }
    let cores = format!("{:.0}", cpu.floor().max(1.0));
    Ok(NAMES.into_iter().map(|name| (name, cores.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::{NAMES, cpu_cap_env};

    #[test]
    fn every_variable_is_the_number_of_whole_cores_and_at_least_one() {
        for (cpu, cores) in [(0.5, "1"), (1.0, "1"), (1.99, "1"), (2.0, "2"), (7.9, "7"), (0.0, "1"), (-3.0, "1")] {
            let env = cpu_cap_env(Some(cpu)).unwrap();
            assert_eq!(env.iter().count(), NAMES.len());
            assert!(env.iter().all(|(_, value)| *value == cores), "{cpu}");
            assert!(env.get("MAKEFLAGS").is_none());
        }
        assert!(cpu_cap_env(None).unwrap().is_empty());
    }

    #[test]
    fn what_is_no_number_of_cores_is_refused() {
        for cpu in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(cpu_cap_env(Some(cpu)).unwrap_err().field(), Some("cpu"));
        }
    }
}
