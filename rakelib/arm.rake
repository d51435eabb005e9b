# frozen_string_literal: true

namespace :arm do
  desc "Run the CPU's kernels on an emulated ARM processor"
  task :test do
    require_relative "support/arm"
    Tasks::Arm.new.tap(&:prepare).test
  rescue Tasks::Tools::Missing => e
    abort "rake arm:test #{e.message}"
  end

  desc "How busy the kernels' loops keep the multiply pipes of ARM processors, by LLVM's models of them"
  task :cycles do
    require_relative "support/arm_cycles"
    require_relative "support/arm_peers"
    arm = Tasks::Arm.new.tap(&:prepare)
    Tasks::ArmCycles.prepare
    results = Tasks::ArmCycles.new(Tasks::ArmCycles.disassemble(arm.library)).results
    peers = Tasks::ArmPeers.new(ENV.fetch(Tasks::ArmPeers::SETTING, nil))
    puts Tasks::ArmCycles.table(results + peers.results), *peers.missing
    failed = results.reject(&:passed?)
    abort "below the goal: #{Tasks::ArmCycles.table(failed).drop(2).join("\n")}" if failed.any?
  rescue Tasks::Tools::Missing => e
    abort "rake arm:cycles #{e.message}"
  end

  desc "Instructions of a token on an emulated ARM processor, with GGUF files, beside llama.cpp's"
  task :instructions, [:file] do |_, arguments|
    require_relative "support/arm_instructions"
    files = [arguments[:file], *arguments.extras].compact
    abort "rake arm:instructions[FILE.gguf,...] needs files" if files.empty?
    arm = Tasks::Arm.new.tap(&:prepare)
    rows = []
    Dir.mktmpdir do |folder|
      peers = ENV.fetch(Tasks::ArmInstructions::SETTING, nil)
      Tasks::ArmInstructions.new(arm, peers, folder).measure(files) do |row, most|
        rows << row
        puts "#{row.file}, #{row.level}, #{row.phase}:"
        most.each { |name, count| puts "  #{count} #{name}" }
      end
    end
    puts Tasks::ArmInstructions.table(rows)
  rescue Tasks::Tools::Missing => e
    abort "rake arm:instructions #{e.message}"
  end

  desc "In continuous integration: the same where the tools are there or can be installed"
  task :emulated do
    next puts "only in continuous integration; by hand: rake arm:test" unless Tasks::Build.continuous_integration?

    require_relative "support/arm"
    arm = Tasks::Arm.new
    begin
      arm.prepare
    rescue Tasks::Tools::Missing => e
      next puts "not run on ARM: #{e.message}"
    end
    arm.test
  end
end
