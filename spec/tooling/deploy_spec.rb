# frozen_string_literal: true

require "json"
require "open3"

RSpec.describe "examples/deploy" do
  describe "the Dockerfile" do
    let(:instructions) do
      text = ProjectFiles.read("examples/deploy/Dockerfile").gsub(/^#.*\n/, "").gsub(/\\\n\s*/, " ")
      text.lines.map(&:strip).reject(&:empty?).map { |line| line.split(" ", 2) }
    end

    it "has known instructions, and begins with a base of a fixed version" do
      known = %w[FROM ARG RUN USER ENV EXPOSE HEALTHCHECK CMD]
      expect(instructions.map(&:first) - known).to be_empty
      expect(instructions.first).to match(["FROM", /\A[a-z]+:\d[\w.-]+\z/])
      expect(instructions.map(&:last)).not_to include(match(/:latest/))
    end

    it "leaves no package lists, installs nothing unasked, and runs as no root" do
      installs = instructions.select { |name, text| name == "RUN" && text.include?("apt-get install") }.map(&:last)
      expect(installs).to all(match(/apt-get update.*--no-install-recommends.*rm -rf /))
      expect(instructions.rindex { |name, _| name == "USER" }).to be < instructions.index { |name, _| name == "CMD" }
      expect(instructions.reverse.assoc("USER").last).not_to eq("root")
    end

    it "starts its command without a shell between, where arrays are meant" do
      expect(JSON.parse(instructions.assoc("CMD").last).last).to start_with("exec red-candle serve")
      check = JSON.parse(instructions.assoc("HEALTHCHECK").last[/\[.*\]/])
      expect(check.last).to end_with("/ready")
      expect(instructions.assoc("EXPOSE").last).to eq("8080")
    end

    it "contains shell that parses" do
      instructions.select { |name, _| name == "RUN" }.each do |_, text|
        output, status = Open3.capture2e("sh", "-n", "-c", text)
        expect(status).to be_success, output
      end
    end
  end

  describe "the systemd unit" do
    let(:unit) do
      section = nil
      lines = ProjectFiles.read("examples/deploy/red-candle.service").lines.map(&:strip)
      lines.grep_v(/\A(#|\z)/).each_with_object(Hash.new { |all, name| all[name] = {} }) do |line, sections|
        next section = line[/\A\[(\w+)\]\z/, 1] if line.start_with?("[")

        name, value = line.split("=", 2)
        sections[section][name] = value
      end
    end

    it "has its three sections with an absolute command" do
      expect(unit.keys).to eq(%w[Unit Service Install])
      expect(unit["Service"]["ExecStart"]).to match(%r{\A/\S+/red-candle serve \S})
      expect(unit["Service"]).to include("DynamicUser" => "yes", "ProtectSystem" => "strict",
                                         "NoNewPrivileges" => "yes", "Restart" => "on-failure")
      expect(unit["Install"]).to eq("WantedBy" => "multi-user.target")
    end

    it "is accepted by systemd, where that is there" do
      path = File.join(ProjectFiles::ROOT, "examples/deploy/red-candle.service")
      output, = Open3.capture2e("systemd-analyze", "verify", "--man=no", path)
      problems = output.lines.grep(/red-candle\.service/).grep_v(/is not executable|No such file/)
      expect(problems).to be_empty
    rescue Errno::ENOENT
      skip("there is no systemd-analyze here")
    end

    it "uses options that the command line has" do
      commands = [unit["Service"]["ExecStart"], ProjectFiles.read("examples/deploy/Dockerfile")[/red-candle serve.*/]]
      known = Candle::CLI.all_commands["serve"].options.keys.map { |name| "--#{name.to_s.tr("_", "-")}" }
      expect(commands.flat_map { |text| text.scan(/--[a-z-]+/) } - known).to be_empty
    end
  end
end
