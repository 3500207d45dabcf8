"""Run `calibrant watch` in forked children that die at named points; prints how each ended.

Arguments: a JSON list of runs, each with `args` and, if it shall die, `fault` or `kill_after`.
Forks share the imports, which take seconds; no thread and no engine has started before them.
"""

import json
import os
import signal
import sys
import time

import ibis
import pyarrow.parquet

import calibrant.tables.watch
import calibrant.tables.watch_page
from calibrant.cli import app, main


def run(plan):
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.environ["CALIBRANT_FAULT"] = plan.get("fault", "")
        os._exit(main(plan["args"]))
    if "kill_after" in plan:
        time.sleep(plan["kill_after"])
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    return "killed" if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


if __name__ == "__main__":
    assert ibis
    assert pyarrow.parquet
    assert calibrant.tables.watch_page
    assert app
    print(json.dumps([run(plan) for plan in json.loads(sys.argv[1])]))
