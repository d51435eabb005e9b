# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

# A picture of many patches, all of which see each other.
RSpec.describe "A call that reads a large picture", if: Process.respond_to?(:fork) do
  source = File.expand_path("../fixtures/seeded_vlms/minicpmv4_6", __dir__)
  photo = File.expand_path("../fixtures/images/photo.png", __dir__)

  def change(path)
    changed = JSON.parse(File.read(path, encoding: "UTF-8"))
    yield changed
    File.write(path, JSON.generate(changed))
  end

  it "stops soon when its thread is interrupted" do
    Dir.mktmpdir do |folder|
      FileUtils.cp(Dir[File.join(source, "*.json")], folder)
      weights = SeededModels.safetensors(JSON.parse(File.read(File.join(source, "tensors.json"))))
      File.binwrite(File.join(folder, "model.safetensors"), weights)
      change(File.join(folder, "preprocessor_config.json")) { |config| config["scale_resolution"] = 1000 }
      child = fork do
        require "timeout"
        vlm = Candle::VLM.from_pretrained(folder, device: "cpu")
        Timeout.timeout(2) { vlm.ask(photo, "w", max_length: 1) }
        exit!(1)
      rescue Timeout::Error
        exit!(0)
      end
      ended = nil
      300.times { (ended = Process.wait2(child, Process::WNOHANG)) ? break : sleep(0.1) }
      unless ended
        Process.kill(:KILL, child)
        Process.wait(child)
      end
      expect(ended&.last&.exitstatus).to eq(0)
    end
  end
end
