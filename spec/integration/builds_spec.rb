# frozen_string_literal: true

require "open3"
require "tmpdir"

# Which build of the extension is loaded. What stands in the CUDA build's place here isn't a CUDA build, so that the
# choice is tested on every machine.
RSpec.describe "Builds of the extension" do
  report = <<~RUBY
    require "candle"
    p Candle::BuildInfo.build, Candle.build_info[:cuda_problem], (Candle::Tensor.new([1.0, 2.0]) + 1).to_a
    puts((Candle::Device.cuda rescue "\#{$!.class}: \#{$!.message}"))
  RUBY

  # @yieldparam directory [String] where to put something at "candle/cuda/candle.so"
  # @return [Array(Array<String>, String, Boolean)] the lines written, the errors, whether it went well
  def load_beside(script, environment = {})
    Dir.mktmpdir do |directory|
      place = File.join(directory, "candle", "cuda")
      FileUtils.mkdir_p(place)
      yield File.join(place, "candle.#{RbConfig::CONFIG["DLEXT"]}")
      environment = { "CANDLE_BUILD" => nil }.merge(environment)
      output, errors, status = Open3.capture3(environment, RbConfig.ruby, "-I", directory, "-I", ChildRuby::LIB,
                                              "-e", script)
      [output.lines(chomp: true), errors, status.success?]
    end
  end

  # A library that loads only where `library` is, as the CUDA build does with NVIDIA's.
  def compile_needing(library, path)
    Dir.mktmpdir do |directory|
      needed = File.join(directory, library)
      File.write("#{directory}/needed.c", "int red_candle_needed(void) { return 1; }\n")
      File.write("#{directory}/candle.c", <<~C)
        int red_candle_needed(void);
        void Init_candle(void) { red_candle_needed(); }
      C
      compiler = RbConfig::CONFIG["CC"].split.first
      commands = [
        [compiler, "-shared", "-fPIC", "-Wl,-soname,#{library}", "-o", needed, "#{directory}/needed.c"],
        [compiler, "-shared", "-fPIC", "-Wl,--no-as-needed", "-o", path, "#{directory}/candle.c", needed]
      ]
      commands.each { |command| expect(system(*command)).to be(true) }
    end
  end

  it "load the plain one where there is no other" do
    installed = File.exist?(File.join(ChildRuby::LIB, "candle", "cuda", "candle.so"))
    build, problem, sum = load_beside(report) { |_| nil }.first
    expect(sum).to eq("[2.0, 3.0]")
    expect([build, problem]).to eq(['"cpu"', "nil"]) unless installed
  end

  it "fall back from a file that isn't a library, and say so" do
    (build, problem, sum, cuda), errors, passed = load_beside(report) { |path| File.write(path, "not a library") }
    expect([passed, errors]).to eq([true, ""])
    expect([build, sum]).to eq(['"cpu"', "[2.0, 3.0]"])
    expect(problem).to include("the CUDA build of red-candle can't be loaded: ")
    expect(cuda).to match(/\ACandle::DeviceError: cuda:0 is not available: the CUDA build of red-candle can't be/)
  end

  it "name the missing library and where it comes from", if: RUBY_PLATFORM.include?("linux") do
    { "libcuda.so.1" => /no NVIDIA driver found \(libcuda\.so\.1 is missing\)\. Install the driver/,
      "libcublas.so.13" => /libcublas\.so\.13 is missing\. Install the libraries of the CUDA/ }.each do |name, words|
      lines, errors, passed = load_beside(report) { |path| compile_needing(name, path) }
      build, problem, sum, cuda = lines
      expect([passed, errors]).to eq([true, ""])
      expect([build, sum]).to eq(['"cpu"', "[2.0, 3.0]"])
      expect([problem, cuda]).to all(match(words))
    end
  end

  it "report the unused build as a fallback of the best device" do
    lines, = load_beside(<<~RUBY) { |path| File.write(path, "not a library") }
      require "candle"
      model = Candle::EmbeddingModel.from_pretrained(#{TinyModels.path("bert").dump})
      puts model.device_report[:fallbacks]
      puts Candle::EmbeddingModel.from_pretrained(#{TinyModels.path("bert").dump}, device: "cpu").device_report[:fallbacks].size
    RUBY
    expect(lines).to match([/\Acuda: the CUDA build of red-candle can't be loaded/, "0"])
  end

  describe "chosen by CANDLE_BUILD" do
    it "are left alone, or the error says why not" do
      (build, problem), = load_beside(report, "CANDLE_BUILD" => "cpu") { |path| File.write(path, "not a library") }
      expect([build, problem]).to match(['"cpu"', /CANDLE_BUILD=cpu leaves the CUDA build of red-candle unused/])

      _, errors, passed = load_beside(report, "CANDLE_BUILD" => "cuda") { |path| File.write(path, "not a library") }
      expect(passed).to be(false)
      expect(errors).to match(/CANDLE_BUILD=cuda is set, but the CUDA build.*can't be loaded.*DeviceError/)
    end

    it "are refused by unknown names" do
      _, errors, passed = load_beside(report, "CANDLE_BUILD" => "toaster") { |_| nil }
      expect(passed).to be(false)
      expect(errors).to match(/CANDLE_BUILD must be "cpu" or "cuda", not "toaster"/)
    end

    it "are missed with the command that installs them",
       unless: File.exist?(File.join(ChildRuby::LIB, "candle", "cuda", "candle.so")) do
      _, errors, passed = load_beside(report, "CANDLE_BUILD" => "cuda") { |_| nil }
      expect(passed).to be(false)
      expect(errors).to match(/built without CUDA\. Reinstall with: gem install .* -- --features cuda/)
    end
  end

  # Where `rake compile:cuda` was run. A libcuda.so.1 that answers every call with CUDA_ERROR_STUB_LIBRARY stands for
  # a driver that does not work, so that the build loads without a GPU.
  describe "with CUDA", if: File.exist?(File.join(ChildRuby::LIB, "candle", "cuda", "candle.so")) do
    def compile_driver(directory)
      build = File.join(ChildRuby::LIB, "candle", "cuda", "candle.so")
      names = IO.popen(["nm", "-D", "--undefined-only", build], &:read).scan(/\bcu[A-Z]\w+/).uniq
      File.write("#{directory}/driver.c", names.map { |name| "int #{name}(void) { return 34; }\n" }.join)
      compiler = RbConfig::CONFIG["CC"].split.first
      expect(system(compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "#{directory}/libcuda.so.1",
                    "#{directory}/driver.c")).to be(true)
    end

    it "compute on the CPU and say why CUDA can't be opened" do
      Dir.mktmpdir do |directory|
        compile_driver(directory)
        libraries = [directory, ENV.fetch("LD_LIBRARY_PATH", nil)].compact.join(":")
        environment = { "LD_LIBRARY_PATH" => libraries, "CANDLE_BUILD" => "cuda" }
        output, errors, status = Open3.capture3(environment, RbConfig.ruby, "-I", ChildRuby::LIB, "-e", report)
        expect([status.success?, errors]).to eq([true, ""])
        expect(output.lines(chomp: true)).to match(
          ['"cuda"', "nil", "[2.0, 3.0]", /\ACandle::DeviceError: cuda:0 is not available: no NVIDIA driver found \(/]
        )
      end
    end
  end
end
