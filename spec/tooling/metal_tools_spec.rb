# frozen_string_literal: true

require "tempfile"
require_relative "../../rakelib/support/metal/kernels"
require_relative "../../rakelib/support/metal/mach_o"
require_relative "../../rakelib/support/metal/macos_symbols"

RSpec.describe Tasks::Metal do
  describe Tasks::Metal::MUTANTS do
    let(:sources) { Tasks::Metal::Kernels::SOURCES }

    it "changes today's sources" do
      described_class.each do |mutant|
        text = File.read(File.join(sources, "#{mutant.file}.metal"))
        expect(mutant.apply(text)).not_to eq(text), mutant.name
      end
    end

    it "covers every subject" do
      expect(described_class.map(&:subject).uniq).to match_array(Tasks::Metal::Kernels::SUBJECTS.keys)
    end

    it "is run whole by as many commits as it has shares" do
      kernels = Tasks::Metal::Kernels.new(nil, nil)
      shares = Array.new(Tasks::Metal::Kernels::SHARES) { |number| kernels.mutants(false, commits: 71 + number) }
      expect(shares.flatten.map(&:name)).to match_array(described_class.map(&:name))
      expect(shares.map(&:size)).to all(be >= described_class.size / shares.size)
      expect(kernels.mutants(true)).to eq(described_class)
      expect(Tasks::Metal::Kernels.commits).to be > 0 if File.exist?(File.join(Tasks::Build::ROOT, ".git"))
    end

    it "names its source by a text that no other has" do
      Tasks::Metal::SIGNS.each do |subject, sign|
        files = Dir[File.join(sources, "*.metal")].select { |path| File.read(path).include?(sign) }
        expect(files.map { |path| File.basename(path, ".metal") }).to eq([subject])
      end
    end

    it "refuses a text that is gone" do
      expect { described_class.first.apply("kernel void other() {}") }.to raise_error(/no longer has the text/)
    end
  end

  describe Tasks::Metal::MachO do
    # A library that imports _malloc from libSystem and _rb_define_module from the process.
    def library
      names = "\0_malloc\0_rb_define_module\0_Init_candle\0"
      path = "/usr/lib/libSystem.B.dylib\0".ljust(32, "\0")
      load_command = [0xc, 24 + path.bytesize, 24, 0, 0, 0].pack("V*") + path
      start = 32 + load_command.bytesize + 24
      symbols = [[1, 0x01, 0, 1 << 8, 0], [9, 0x01, 0, 254 << 8, 0], [27, 0x0f, 1, 0, 64]]
                .map { |symbol| symbol.pack("VCCvQ<") }.join
      table = [2, 24, start, 3, start + symbols.bytesize, names.bytesize].pack("V*")
      [0xfeedfacf, 0, 0, 6, 2, load_command.bytesize + 24, 0, 0].pack("V*") + load_command + table + symbols + names
    end

    def read(bytes)
      Tempfile.create("library", binmode: true) do |file|
        file.write(bytes)
        file.flush
        described_class.new(file.path)
      end
    end

    it "reads imports, where they come from, and exports" do
      parsed = read(library)
      expect(parsed.imports.map(&:to_a))
        .to eq([["_malloc", "libSystem.B.dylib"], ["_rb_define_module", "the process"]])
      expect(parsed.exports).to eq(["_Init_candle"])
    end

    it "refuses another format" do
      expect { read("\x7fELF#{"\0" * 64}") }.to raise_error(/not a 64-bit Mach-O/)
    end
  end

  describe Tasks::Metal::MacosSymbols do
    it "finds Ruby's own functions and frameworks' functions, and nothing else" do
      expect(described_class.provided?("the process", "_rb_define_module", "")).to be(true)
      expect(described_class.provided?("the process", "_rb_no_such_function", "")).to be(false)
      expect(described_class.provided?("Metal", "_MTLCreateSystemDefaultDevice", "")).to be(true)
      expect(described_class.provided?("Metal", "_objc_msgSend", "")).to be(false)
    end
  end
end
