// A child profiler that hands Kineto the activities of CuptiRangeProfiler.cpp and CuptiPMSamplingProfiler.cpp, as they
// make them; what becomes of these in the file is Kineto's own code (output_json.cpp).
#include <GenericTraceActivity.h>
#include <IActivityProfiler.h>
#include <libkineto.h>
#include <output_base.h>

#include <chrono>

using namespace libkineto;

struct Session : IActivityProfilerSession {
  int64_t begin = 0;
  std::unique_ptr<CpuTraceBuffer> buffer;

  void start() override {
    begin = std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }

  GenericTraceActivity& add(ActivityType type, const char* name, int64_t from_us, int64_t to_us) {
    buffer->emplace_activity(buffer->span, type, name);
    auto& made = *buffer->activities.back();
    made.startTime = begin + 1000 * from_us;
    made.endTime = begin + 1000 * to_us;
    made.device = 0;
    return made;
  }

  void stop() override {
    buffer = std::make_unique<CpuTraceBuffer>();
    buffer->span = TraceSpan(begin, begin + 40'000, "counters");
    const char* names[] = {"void gemm<float, 128>(float*)", "__missing__"};
    for (int i = 0; i < 2; ++i) {
      auto& kernel = add(ActivityType::CONCURRENT_KERNEL, names[i], 20 * i, 20 * i + 20);
      kernel.resource = 7;
      kernel.addMetadata("stream", 7);
      auto& range = add(ActivityType::CUDA_PROFILER_RANGE, names[i], 20 * i, 20 * i + 20);
      range.addMetadata("dram__bytes_read.sum", 1e6 * (i + 1) + 0.5);
      range.addMetadata("dram__bytes_write.sum", 2.5e5);
      range.addMetadata("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", 1.0e12);
    }
    for (int i = 0; i < 5; ++i) {
      auto& sample = add(ActivityType::MTIA_COUNTERS, "CUPTI PM Sampling", 10 * i, 10 * i + 10);
      sample.addCounterValue("sm__cycles_active.avg", 1.25 * i);
      sample.addCounterValue("dram__bytes_read.sum", 1e5 * i);
      sample.addCounterValue("dram__bytes_write.sum", 1e3);
    }
  }

  std::vector<std::string> errors() override { return {}; }
  void processTrace(ActivityLogger& logger) override {
    for (auto& each : buffer->activities) CpuTraceBuffer::toRef(each).log(logger);
  }
  std::unique_ptr<DeviceInfo> getDeviceInfo() override { return {}; }
  std::vector<ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer); }
};

struct Profiler : IActivityProfiler {
  const std::string& name() const override {
    static const std::string said = "counters";
    return said;
  }
  const std::set<ActivityType>& availableActivities() const override {
    static const std::set<ActivityType> types{ActivityType::CUDA_PROFILER_RANGE};
    return types;
  }
  std::unique_ptr<IActivityProfilerSession> configure(const std::set<ActivityType>&, const Config&) override {
    return std::make_unique<Session>();
  }
  std::unique_ptr<IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>&, const Config&) override {
    return std::make_unique<Session>();
  }
};

extern "C" void register_counters() {
  api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
}
