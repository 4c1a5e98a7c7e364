"""The C of a library whose loops several threads share.

Threads live in a struct of the caller's, made by ``NAME_start`` and ended by ``NAME_stop``, for a
thread that is made for a call costs more than many a kernel. A call that is given none, or some
that another call has at the moment, runs by itself, with the same bits. Threads wait by a mutex
and a condition, never busily, so that a loop has to be worth the microseconds of waking them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxeff_export.clib.codegen._sources import Library

FIELD = "threads"  # of the inputs


def declarations(library: Library) -> list[str]:
    """Writes the struct and its functions, for the header."""
    n, u = library.name, library.upper
    return [
        "",
        "/* Threads that share the loops of a call, the caller's included. NULL in place of them:",
        "   none. Where two calls have the same at the same time, one of them runs by itself. */",
        f"#define {u}_THREADS {library.threads}",
        "typedef struct {",
        "    pthread_mutex_t taken, lock;",
        "    pthread_cond_t begin, done;",
        f"    pthread_t workers[{u}_THREADS - 1];",
        "    const void *inputs, *outputs;",
        "    unsigned char *at;",
        "    unsigned jobs;",
        "    int job, made, numbered, pending, over;",
        f"}} {n}_threads;",
        "",
        "/* Both where no call is running; start returns what a call does. */",
        f"int {n}_start({n}_threads *threads);",
        f"void {n}_stop({n}_threads *threads);",
    ]


def source(library: Library, steps: list[str]) -> list[str]:
    """Writes the functions, for what calls the kernels.

    Args:
        library: library that the threads belong to.
        steps: the calls of the loops that are shared, in order, of `inputs`, `outputs`, `at`,
            `task` and `tasks`.
    """
    n, u, parameters = library.name, library.upper, ""
    # The name by which embedded constants are known: the calls are the same text.
    if not library.embedded and library.parameters.blob:
        parameters = f"    const unsigned char *const {n}_parameters = inputs->parameters;\n"
    cases = "\n".join(
        f"    case {i}:\n        {call}\n        break;" for i, call in enumerate(steps)
    )
    return _SOURCE.format(n=n, u=u, parameters=parameters, cases=cases).splitlines()


_SOURCE = """
/* Where the turns of a task begin. */
static int32_t turn(int32_t turns, int task, int tasks)
{{
    return (int32_t)((int64_t)turns * task / tasks);
}}

static void step(int job, int task, int tasks, const {n}_inputs *inputs,
                 const {n}_outputs *outputs, unsigned char *at)
{{
{parameters}    (void)task, (void)tasks, (void)inputs, (void)outputs, (void)at, (void)turn;
    switch (job) {{
{cases}
    default:
        break;
    }}
}}

static void share({n}_threads *threads, int job, const {n}_inputs *inputs,
                  const {n}_outputs *outputs, unsigned char *at)
{{
    if (threads == NULL) {{
        step(job, 0, 1, inputs, outputs, at);
        return;
    }}
    pthread_mutex_lock(&threads->lock);
    threads->inputs = inputs;
    threads->outputs = outputs;
    threads->at = at;
    threads->job = job;
    threads->pending = threads->made;
    threads->jobs++;
    pthread_cond_broadcast(&threads->begin);
    pthread_mutex_unlock(&threads->lock);
    step(job, 0, {u}_THREADS, inputs, outputs, at);
    pthread_mutex_lock(&threads->lock);
    while (threads->pending != 0)
        pthread_cond_wait(&threads->done, &threads->lock);
    pthread_mutex_unlock(&threads->lock);
}}

static void *work(void *given)
{{
    {n}_threads *const threads = given;
    unsigned seen = 0;
    int task;
    pthread_mutex_lock(&threads->lock);
    task = ++threads->numbered;
    for (;;) {{
        while (threads->jobs == seen && !threads->over)
            pthread_cond_wait(&threads->begin, &threads->lock);
        if (threads->over)
            break;
        seen = threads->jobs;
        pthread_mutex_unlock(&threads->lock);
        step(threads->job, task, {u}_THREADS, threads->inputs, threads->outputs, threads->at);
        pthread_mutex_lock(&threads->lock);
        if (--threads->pending == 0)
            pthread_cond_signal(&threads->done);
    }}
    pthread_mutex_unlock(&threads->lock);
    return NULL;
}}

int {n}_start({n}_threads *threads)
{{
    if (threads == NULL)
        return {u}_NULL_POINTER;
    memset(threads, 0, sizeof *threads);
    if (pthread_mutex_init(&threads->taken, NULL) != 0)
        return {u}_NO_THREADS;
    if (pthread_mutex_init(&threads->lock, NULL) != 0)
        goto no_lock;
    if (pthread_cond_init(&threads->begin, NULL) != 0)
        goto no_begin;
    if (pthread_cond_init(&threads->done, NULL) != 0)
        goto no_done;
    while (threads->made < {u}_THREADS - 1) {{
        if (pthread_create(&threads->workers[threads->made], NULL, work, threads) != 0) {{
            {n}_stop(threads);
            return {u}_NO_THREADS;
        }}
        threads->made++;
    }}
    return {u}_OK;
no_done:
    pthread_cond_destroy(&threads->begin);
no_begin:
    pthread_mutex_destroy(&threads->lock);
no_lock:
    pthread_mutex_destroy(&threads->taken);
    return {u}_NO_THREADS;
}}

void {n}_stop({n}_threads *threads)
{{
    int i;
    pthread_mutex_lock(&threads->lock);
    threads->over = 1;
    pthread_cond_broadcast(&threads->begin);
    pthread_mutex_unlock(&threads->lock);
    for (i = 0; i < threads->made; i++)
        pthread_join(threads->workers[i], NULL);
    pthread_cond_destroy(&threads->done);
    pthread_cond_destroy(&threads->begin);
    pthread_mutex_destroy(&threads->lock);
    pthread_mutex_destroy(&threads->taken);
}}"""
