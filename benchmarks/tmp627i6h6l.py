
import json, re, resource, sys, time
from tracelens.analysis.ranks.files import find_traces
from tracelens.analysis.ranks.job import compare_ranks
from tracelens.executors import open_executor
def main():
    import pandas
    w, c = time.perf_counter(), time.process_time()
    with open_executor("processes", jobs=int(sys.argv[2])) as executor:
        result = compare_ranks(find_traces([sys.argv[1]]), executor=executor)
    wall, parent = time.perf_counter() - w, time.process_time() - c
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open("/proc/self/status") as status:
        peak = int(re.search(r"VmHWM:\s+(\d+)", status.read())[1]) / 1024
    kept = sum(s.nbytes for s in result.ranks.values()) / 1e6
    cpu = children.ru_utime + children.ru_stime
    print(json.dumps([wall, cpu, parent, peak, kept, len(result.ranks), len(result.frames["nccl_long"])]))
if __name__ == "__main__":
    main()
